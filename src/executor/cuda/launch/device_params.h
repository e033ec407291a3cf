// Programs' tables that do not fit the parameters of a kernel, in device memory. Many share one
// allocation, which the driver makes 2 MiB long even for a smaller request, and which ends with the
// last of them. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "gpu/cuda/machine.h"

namespace niccolite::executor::cuda {

/// The tables of one program. No kernel may need them when the last owner lets go, which may be no
/// callback of the driver: see retire().
using DeviceParams = std::shared_ptr<const std::byte>;

/// Copies `params` to `device`; blocks until it is there. Errors: CudaError for want of memory.
Result<DeviceParams> make_device_params(gpu::cuda::CudaMachine& machine, int device,
                                        std::span<const std::byte> params);

/// For callbacks, which must not call the driver: the next make_device_params() lets go of it.
void retire(DeviceParams params);

}  // namespace niccolite::executor::cuda
