// What the kernels for a few patterns read (direct_params.h, phase_params.h).
#pragma once

#include <cstring>
#include <vector>

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {

/// What stands behind the works, which kernel reads it, and how that is launched.
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
