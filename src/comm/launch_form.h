// What a planned launch looks like to a profiler: per work its algorithm, channels, CTAs, and what
// proxies carry of it.
#pragma once

#include "comm/planned.h"
#include "comm/profiling.h"

namespace niccolite::comm {

/// `planned` has its ports.
LaunchForm form_of(const Planned& planned);

}  // namespace niccolite::comm
