// Errors and versions.
#include <utility>

#include "vcuda/call.h"

namespace vcuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace vcuda

using niccolite::gpu::virtual_::Error;

cudaError_t cudaGetLastError() { return std::exchange(vcuda::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return vcuda::last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define X(name) \
  case name:    \
    return #name;
#include "vcuda/error_names.def"
#undef X
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<Error>(error)) {
    case Error::None:
      return "no error";
#define X(name, value, text) \
  case Error::name:          \
    return text;
      NICCOLITE_VIRTUAL_ERRORS(X)
#undef X
  }
  switch (error) {
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorInvalidDevicePointer:
      return "invalid device pointer";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorInsufficientDriver:
      return "the driver is older than the runtime needs";
    case cudaErrorUnknown:
      return "unknown error";
    default:
      break;
  }
  // The rest are never given by virtual GPUs; their name says more than a second list of texts.
  return cudaGetErrorName(error);
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return vcuda::keep(cudaErrorInvalidValue);
  *version = niccolite::gpu::virtual_::kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
