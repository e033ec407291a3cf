// The value of --machines: the number of ranks on each machine.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::grammar {

/// Returns the machine of each rank, for "2x4" (two machines of four ranks) or "3,1" (one of three
/// ranks and one of one). InvalidArgument for other texts and for more than 32,768 ranks.
Result<std::vector<int>> parse_machines(const std::string& text);

}  // namespace niccolite::grammar
