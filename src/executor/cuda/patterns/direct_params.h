// Programs of one step, in the form that the kernels of direct.cuh read. Pure functions.
#pragma once

#include <optional>

#include "executor/cuda/patterns/pattern_params.h"

namespace niccolite::executor::cuda {

/// The launch for such a kernel; none when the program is nothing for them: of one work of one
/// step (direct_task.h), or of several messages. `reduces`: for a kernel that reduces.
std::optional<PatternParams> direct_params(const Launch& launch, bool reduces);

}  // namespace niccolite::executor::cuda
