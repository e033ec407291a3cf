// The value of --machines: how many ranks each machine has.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::schedule_command {

/// "2x4" (two machines of four ranks) or "3,1" (of three ranks and of one): the machine of each
/// rank. InvalidArgument of anything else, and of more than 32,768 ranks.
Result<std::vector<int>> parse_machines(const std::string& text);

}  // namespace niccolite::schedule_command
