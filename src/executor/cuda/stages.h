// The shared memory that bulk copies pass through: the stages of bulk workers (bulk_stages.cuh) and
// the rings of a shared reduction (reduction_ring.cuh). Pure functions.
#pragma once

#include <cstdint>

#include "executor/cuda/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// The worker whose reduction the CTAs share.
struct SharedReductionWorker {
  uint32_t warps = 0;     // 0: there is none
  uint32_t operands = 0;  // of the reduction
};

/// Lays them out behind header.shared_bytes, which grows by what they take, and says in the header
/// where they are, and whether the reduction pulls what its peers expose (protocol/pull.h).
/// `bulk_workers`: the most of a CTA.
void add_stages(const Launch& launch, uint32_t bulk_workers, const SharedReductionWorker& reduction,
                LaunchHeader& header);

}  // namespace niccolite::executor::cuda
