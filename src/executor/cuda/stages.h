// The shared memory that bulk copies pass through: the stages of bulk lanes (bulk_stages.cuh) and
// the rings of a shared fold (fold_ring.cuh). Pure functions.
#pragma once

#include <cstdint>

#include "executor/cuda/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// The lane whose fold the CTAs share.
struct SharedFoldLane {
  uint32_t warps = 0;     // 0: there is none
  uint32_t operands = 0;  // of the fold
};

/// Lays them out behind header.shared_bytes, which grows by what they take, and says in the header
/// where they are, and whether the fold requests what its peers lend (protocol/request.h).
/// `bulk_lanes`: the most of a CTA.
void add_stages(const Launch& launch, uint32_t bulk_lanes, const SharedFoldLane& fold,
                LaunchHeader& header);

}  // namespace niccolite::executor::cuda
