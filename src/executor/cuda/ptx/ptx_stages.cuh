// The instructions of stages, a part of ptx.cuh: copies to shared memory while the thread goes on
// (pipeline.cuh). A stage's barrier in shared memory says when it is full.
//
// Architectures from 9.0 on use bulk copies: a unit of their own moves multiples of 16 bytes
// between global and shared memory. A load announces its bytes at the barrier. Stores are waited
// for in groups, which one thread commits. Older architectures use loads of 16 bytes each,
// announced by the threads that start them. The host cannot tell the two apart, so kernels ask
// has_bulk_copies(). A bulk copy on an architecture without them traps, rather than to go on
// without its data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda::ptx {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkCopies = true;
#else
inline constexpr bool kHasBulkCopies = false;
#endif
__device__ __forceinline__ constexpr bool has_bulk_copies() { return kHasBulkCopies; }
__device__ __forceinline__ void require_bulk_copies() {
  if constexpr (!kHasBulkCopies) asm volatile("trap;");
}
/// A barrier whose phases are of so many arrivals each: loads, or announcements of loads.
__device__ __forceinline__ void init_stage_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// The barrier may be initialised again. No thread uses it.
__device__ __forceinline__ void invalidate_stage_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Waits until the barrier's phase of this parity is over: its loads have arrived. Acquires.
__device__ __forceinline__ void await_stage(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    if constexpr (kHasBulkCopies) {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n"
          "}"
          : "=r"(done)
          : "r"(shared_address(barrier)), "r"(parity)
          : "memory");
    } else {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n"
          "}"
          : "=r"(done)
          : "r"(shared_address(barrier)), "r"(parity)
          : "memory");
    }
  }
}
/// Starts the load of 16 bytes; does not look at the first-level cache.
__device__ __forceinline__ void async_load(std::byte* shared, const std::byte* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(source)
               : "memory");
}
/// Arrives at the barrier when all loads have, that the thread has started by async_load().
__device__ __forceinline__ void arrive_after_async_loads(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives at once. Releases the thread's earlier stores to threads that wait for the stage.
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  [[maybe_unused]] uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
               : "=l"(state)
               : "r"(shared_address(barrier))
               : "memory");
}
/// Orders the calling thread's accesses to global memory before the bulk copies that it starts from
/// now on, and bulk copies that it has waited for before its accesses from now on. (For all state
/// spaces, this would be a fence of the whole GPU too, a microsecond.)
__device__ __forceinline__ void fence_bulk() {
  if constexpr (kHasBulkCopies) asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// Orders the calling thread's stores to shared memory, inits of barriers among them, before the
/// bulk copies that it starts from now on, or whoever learns of the stores by a barrier. (A barrier
/// of the warp orders inits before all else.)
__device__ __forceinline__ void fence_bulk_of_shared() {
  if constexpr (kHasBulkCopies) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Starts a load of `bytes` bytes, which may be none. The barrier's last phase is over. Releases
/// the thread's earlier stores to threads that wait for the load.
__device__ __forceinline__ void bulk_load(std::byte* shared, const std::byte* source,
                                          uint32_t bytes, uint64_t* barrier) {
  require_bulk_copies();
  if constexpr (kHasBulkCopies) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
    if (bytes == 0) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(source), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  }
}
__device__ __forceinline__ void bulk_store(std::byte* target, const std::byte* shared,
                                           uint32_t bytes) {
  require_bulk_copies();
  if constexpr (kHasBulkCopies) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
  }
}
/// The stores since the last call are a group, also when there are none.
__device__ __forceinline__ void commit_bulk_stores() {
  require_bulk_copies();
  if constexpr (kHasBulkCopies) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all but the last kGroups groups have read shared memory.
template <uint32_t kGroups>
__device__ __forceinline__ void await_bulk_reads() {
  require_bulk_copies();
  if constexpr (kHasBulkCopies) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
  }
}
/// Waits until the stores of all but the last kGroups groups are complete.
template <uint32_t kGroups>
__device__ __forceinline__ void await_bulk_stores() {
  require_bulk_copies();
  if constexpr (kHasBulkCopies) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
  }
}

}  // namespace niccolite::executor::cuda::ptx
