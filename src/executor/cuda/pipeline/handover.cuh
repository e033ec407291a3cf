// The task that the one thread that copies with bulk copies leaves to its worker's other warps
// (copy_worker.cuh), which wait for it from the start. In most launches it leaves them nothing.
#pragma once

#include "executor/cuda/pipeline/stage_ring.cuh"

namespace niccolite::executor::cuda {

/// Shared memory. Waited for at a barrier: looks at a word would cost the thread some time, and few
/// looks the others.
struct Handover {
  static constexpr uint64_t kNothing = 0;

  uint64_t left;  // kNotYet, kNothing, or what take_over_copy() of kernel.cuh says
  uint64_t barrier;

  /// Called by one thread, before all others know of the handover.
  __device__ __forceinline__ void start() {
    left = kNotYet;
    ptx::init_stage_barrier(&barrier, /*arrivals=*/1);
  }
  /// Called by the thread that copies: the first time counts.
  __device__ __forceinline__ void leave(uint64_t what) {
    if (left != kNotYet) return;
    left = what;
    ptx::arrive(&barrier);
  }
  /// Called by all threads of a warp.
  __device__ __forceinline__ uint64_t await() {
    await_stage_together(&barrier, /*parity=*/0);
    return left;
  }

 private:
  static constexpr uint64_t kNotYet = ~uint64_t{0};
};
static_assert(sizeof(Handover) == kHandoverPointers * sizeof(std::byte*));

}  // namespace niccolite::executor::cuda
