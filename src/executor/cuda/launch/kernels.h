// The kernels of this build, loaded into devices. Thread safety: any thread.
#pragma once

#include "executor/cuda/launch/kernel_launch.h"
#include "gpu/cuda/driver_api.h"

namespace niccolite::executor::cuda {

enum class OneSidedKernel : uint8_t { Put, RelayedPut, SignalWait, TeamTrial };
inline constexpr int kOneSidedKernels = 4;

/// Loads every kernel into `device`, completely, once per process; for the time a communicator is
/// made. Not later: a kernel's first launch, when it is not loaded yet, waits for the device, where
/// another rank's kernel may be waiting for this launch.
/// Errors: CudaError when this build has no CUDA kernels, or none for the device's architecture.
Status load(int device);

/// The kernel on `device`; loads all if load() was not called.
Result<gpu::cuda::CuFunction> find_kernel(int device, const KernelId& id);
Result<gpu::cuda::CuFunction> find_kernel(int device, OneSidedKernel kernel);

}  // namespace niccolite::executor::cuda
