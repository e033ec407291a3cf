// What a planned launch looks like to a profiler: per work its algorithm, channels, CTAs, and what
// proxies carry of it.
#pragma once

#include "operations/planned.h"
#include "profiling/profiling.h"

namespace niccolite::operations {

/// `planned` has its ports.
profiling::LaunchForm form_of(const Planned& planned);

}  // namespace niccolite::operations
