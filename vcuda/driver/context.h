// Contexts of virtual GPUs: each thread's stack of them. A virtual GPU has one state, whoever
// makes a context of it: contexts differ in their handles alone. Thread safety: any thread.
#pragma once

#include "vcuda/driver/api.h"

namespace vcuda::driver {

/// Error codes of the runtime and of the driver are equal since CUDA 10.1, but for few.
CUresult of(cudaError_t error);

/// Has cuInit been called? All other functions want it.
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

/// The context that a stream or an allocation of `device` is in: its primary one.
CUcontext primary_context(int device);
/// The device of a context; -1: there is no such context.
int device_of(CUcontext context);

}  // namespace vcuda::driver
