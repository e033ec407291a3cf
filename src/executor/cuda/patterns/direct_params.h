// Programs of one step, in the form that the kernels of direct.cuh read. Pure functions.
#pragma once

#include "executor/cuda/patterns/pattern_params.h"

namespace niccolite::executor::cuda {

/// Is the launch, of one work, one for direct.cuh? It has one step (direct_task.h), and few peers
/// where counters lie in host memory.
bool has_direct_kernel(const Launch& launch, bool reduces);
/// The parameters of a launch that is.
PatternParams direct_params(const Launch& launch, bool reduces);

/// Is the launch, of one work, one for direct_lines.cuh? It reduces, has one step and one round,
/// and few peers.
bool has_lines_kernel(const Launch& launch, bool reduces);
/// The parameters of a launch that is.
PatternParams lines_params(const Launch& launch, bool reduces);

/// Is each of several works a message, to one peer or from one, for a kernel that moves bytes?
bool are_messages_of_one_step(const Launch& launch, bool reduces);
/// The parameters of a launch of such works.
PatternParams messages_params(const Launch& launch);

}  // namespace niccolite::executor::cuda
