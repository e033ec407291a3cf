// Lists (Launch::is_list()): the parameters of their kernels. Pure functions.
#pragma once

#include <span>

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {

/// A list whose program has one step (goes_in_one_step()). `result` has its kernel's type and op,
/// and the flags.
KernelLaunch prepare_list(const Launch& launch, KernelLaunch result);
/// A list over buffers that all ranks reach (Launch::list_access), whose program connects all ranks
/// in both directions (reduces_in_one_step()).
KernelLaunch prepare_direct_list(const Launch& launch, KernelLaunch result);

void set_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers);
void set_direct_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers);

}  // namespace niccolite::executor::cuda
