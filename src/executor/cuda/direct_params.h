// Programs of one step, in the form that the kernels of direct.cuh read. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "executor/cuda/kernel_launch.h"

namespace niccolite::executor::cuda {

/// What stands behind the works, and which kernel reads it.
struct DirectParams {
  KernelVariant variant;
  uint32_t most_peers;
  bool in_host;
  uint32_t threads;
  uint32_t shared_bytes;
  std::vector<std::byte> bytes;
};

/// The launch for such a kernel; none when the program is nothing for them: of one work of one
/// step (direct_task.h), or of several messages. `reduces`: for a kernel that reduces.
std::optional<DirectParams> direct_params(const Launch& launch, bool reduces);

}  // namespace niccolite::executor::cuda
