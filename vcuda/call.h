// What every function of vcuda passes through: it finds the virtual GPUs, stops exceptions, and
// keeps the calling thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include <new>

#include "gpu/virtual/runtime.h"

namespace vcuda {

using niccolite::gpu::virtual_::Error;
using niccolite::gpu::virtual_::Runtime;

/// Keeps an error for cudaGetLastError() and gives it back.
cudaError_t keep(cudaError_t error);

/// Runs body(Runtime&), which returns an Error.
template <typename Body>
cudaError_t call(Body&& body) {
  try {
    Runtime* runtime = Runtime::instance();
    if (runtime == nullptr || runtime->device_count() == 0) return keep(cudaErrorNoDevice);
    return keep(static_cast<cudaError_t>(body(*runtime)));
  } catch (const std::bad_alloc&) {
    return keep(cudaErrorMemoryAllocation);
  } catch (...) {
    return keep(cudaErrorUnknown);
  }
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
