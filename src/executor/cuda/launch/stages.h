// The shared memory that staged workers use (pipeline.cuh): a ring for each worker that copies, and
// one for each warp of the worker that reduces. Pure functions.
#pragma once

#include <cstdint>

#include "executor/cuda/launch/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// The worker that reduces through stages.
struct StagedReduction {
  uint32_t warps = 0;  // 0: there is none
  uint32_t operands = 0;
};

/// Lays the rings out behind header.shared_bytes, which grows by their size, up to `most_shared`.
/// Says in the header where they are, and whether the reduction pulls the data that its peers
/// expose (protocol/pull.h). `copy_rings`: the most of a CTA.
void add_stages(const Launch& launch, uint32_t copy_rings, const StagedReduction& reduction,
                uint32_t most_shared, LaunchHeader& header);

}  // namespace niccolite::executor::cuda
