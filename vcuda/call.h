// The common part of every function of vcuda: it finds the virtual GPUs, stops exceptions, and
// keeps the calling thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include <new>

#include "base/forks.h"
#include "gpu/virtual/runtime.h"

namespace vcuda {

using niccolite::gpu::virtual_::Error;
using niccolite::gpu::virtual_::Runtime;

/// Keeps an error for cudaGetLastError() and gives it back.
cudaError_t keep(cudaError_t error);

/// Runs body(Runtime&), which returns an Error, for a question that needs no context.
template <typename Body>
cudaError_t ask(Body&& body) {
  try {
    Runtime* runtime = Runtime::instance();
    if (runtime == nullptr || runtime->device_count() == 0) return keep(cudaErrorNoDevice);
    if (niccolite::forks::is_orphan()) return keep(cudaErrorInitializationError);
    Runtime::note_use();
    return keep(static_cast<cudaError_t>(body(*runtime)));
  } catch (const std::bad_alloc&) {
    return keep(cudaErrorMemoryAllocation);
  } catch (...) {
    return keep(cudaErrorUnknown);
  }
}

/// Runs body(Runtime&) for work on the calling thread's device, whose primary context is current
/// afterwards.
template <typename Body>
cudaError_t call(Body&& body) {
  return ask([&](Runtime& runtime) {
    Runtime::has_context() = true;
    return body(runtime);
  });
}

/// A stream with its device: the current one for the special handles.
struct Place {
  int device;
  cudaStream_t stream;
};
inline Place place_of(Runtime& runtime, cudaStream_t stream) {
  niccolite::gpu::virtual_::Stream properties;
  const int current = Runtime::current_device();
  // A bad handle is refused by the call that follows.
  if (runtime.stream_properties(current, stream, &properties) != Error::None)
    return {current, stream};
  return {properties.device, stream};
}

}  // namespace vcuda
