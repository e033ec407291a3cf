// What a planned launch looks like to a profiler: per work its algorithm, channels, CTAs, and what
// proxies carry of it.
#pragma once

#include <string>

#include "comm/planned.h"
#include "comm/profiling.h"

namespace niccolite::comm {

/// As log lines have it: "SIMPLE".
std::string log_name_of(executor::Protocol protocol);

/// `planned` has its ports.
LaunchForm form_of(const Planned& planned);

}  // namespace niccolite::comm
