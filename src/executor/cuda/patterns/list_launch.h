// Lists (Launch::is_list()): the parameters of their kernels. Pure functions.
#pragma once

#include <span>

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {

/// `result` has its kernel's type and op, and the flags. Nothing but the kernels for them runs
/// lists. InternalError when the program is not of one step by LL, in which all peers are sent the
/// own block.
Result<KernelLaunch> prepare_list(const Launch& launch, KernelLaunch result);
/// The same of a list over buffers that all ranks reach (Launch::list_access), whose program has to
/// connect all ranks in both directions.
Result<KernelLaunch> prepare_direct_list(const Launch& launch, KernelLaunch result);

void set_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers);
void set_direct_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers);

}  // namespace niccolite::executor::cuda
