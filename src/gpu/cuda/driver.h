// Driver: the CUDA driver API, opened at run time. One typed table of functions, and the way from a
// CUresult to a Status. Who may use it: gpu/cuda and executor/cuda. Thread safety: immutable once
// loaded; any thread.
#pragma once

#include "base/status.h"
#include "gpu/cuda/driver_api.h"

namespace niccolite::gpu::cuda {

struct Driver {
#define X(function, version, parameters) CuResult(*function) parameters = nullptr;
  NICCOLITE_CUDA_DRIVER_FUNCTIONS(X)
  NICCOLITE_CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
  int version = 0;  // 13000 for 13.0

  /// Fine for success, else CudaError "<what> failed: <cause> (<name>, <number>)". Formats only
  /// when there is something to say.
  template <typename... Args>
  Status check(CuResult result, Format<std::type_identity_t<Args>...> what,
               const Args&... args) const {
    if (result == kCuSuccess) [[likely]]
      return {};
    return failure(result, fmt::vformat(what.text, fmt::make_format_args(args...)), what.place);
  }

 private:
  Status failure(CuResult result, const std::string& what, SourceLocation place) const;
};

/// Opens libcuda.so.1 and initialises it, once per process. Errors: CudaError when there is none,
/// it is older than CUDA 12.0, or it finds no device; the reason is the same every time.
Result<const Driver*> load_driver();

}  // namespace niccolite::gpu::cuda
