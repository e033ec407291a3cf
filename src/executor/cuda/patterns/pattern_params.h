// The parameters of the kernels for a few patterns (direct_params.h, phase_params.h).
#pragma once

#include <cstring>
#include <vector>

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {

/// The parameters behind the works, the kernel that reads them, and its launch shape.
struct PatternParams {
  KernelVariant variant;
  uint32_t most_peers;
  Counters counters;
  uint32_t threads;
  uint32_t shared_bytes;
  std::vector<std::byte> bytes;
};

template <typename T>
std::vector<std::byte> bytes_of(const T& params, size_t bytes = sizeof(T)) {
  std::vector<std::byte> copy(bytes);
  std::memcpy(copy.data(), &params, bytes);
  return copy;
}

}  // namespace niccolite::executor::cuda
