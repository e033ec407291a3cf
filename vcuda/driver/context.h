// Contexts of virtual GPUs: each thread's stack of them. All contexts of a virtual GPU share one
// state, so they differ in their handles alone. Thread safety: any thread.
#pragma once

#include <new>

#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/tasks.h"
#include "vcuda/driver/api.h"

namespace vcuda::driver {

/// The virtual GPUs, which the runtime's library has; null: none are configured.
niccolite::gpu::virtual_::VirtualMachine* machine();

/// Is the runtime of the process virtual GPUs' own?
bool has_runtime();
/// Says once that NVIDIA's does not work with this driver; gives NotSupported.
CUresult refuse_foreign_runtime();

/// Error codes of the runtime and of the driver are equal since CUDA 10.1, with few exceptions.
CUresult of(cudaError_t error);

/// True if cuInit has been called, by the program or by the runtime. All other functions require
/// it.
bool is_initialized();

/// The device of the calling thread's context, which the runtime's calls of this thread are for,
/// too. Errors: NotInitialized, InvalidContext when the thread has none.
CUresult current_device(int& device);

/// Runs body(), which returns a CUresult, in the thread's context.
template <typename Body>
CUresult in_context(Body&& body) {
  int device = 0;
  const CUresult entered = current_device(device);
  return entered == kSuccess ? body() : entered;
}

/// The device that work of `stream` is for: the stream's own, or the context's for CUDA's special
/// handles. A bad handle is refused by the call that follows.
int device_of_stream(CUstream stream, int current);

/// Runs body(device, DriverCalls&), which returns a CUresult, for work of `stream`.
template <typename Body>
CUresult in_stream(CUstream stream, Body&& body) {
  int current = 0;
  const CUresult entered = current_device(current);
  if (entered != kSuccess) return entered;
  niccolite::gpu::virtual_::VirtualMachine* const found = machine();
  if (found == nullptr) return kNoDevice;
  try {
    return body(device_of_stream(stream, current), found->driver_calls());
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

/// The context that a stream or an allocation of `device` is in: its primary one.
CUcontext primary_context(int device);
/// The device of a context; -1: there is no such context.
int device_of(CUcontext context);

}  // namespace vcuda::driver
