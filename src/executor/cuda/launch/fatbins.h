// The kernels embedded in the library: one fatbin per type, and one for the kernels that only copy.
// Built from nvcc's output (CMakeLists.txt), or empty in a build without nvcc (absent.cc).
#pragma once

#include <span>

namespace niccolite::executor::cuda {

struct Fatbin {
  const char* name;  // as in the kernels' names: "float32", or "copy"
  const void* data;
};

/// Empty: this build has no CUDA kernels.
std::span<const Fatbin> fatbins();

}  // namespace niccolite::executor::cuda
