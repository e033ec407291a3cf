// The form in which a profiler sees a planned launch: for each work its algorithm, channels and
// CTAs, and the share that proxies carry.
#pragma once

#include "operations/planned.h"
#include "profiling/profiling.h"

namespace niccolite::operations {

/// `planned` has its ports.
profiling::LaunchForm form_of(const Planned& planned);

}  // namespace niccolite::operations
