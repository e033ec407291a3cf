// The instructions of the GPU that C++ has no name for: with ptx_stages.cuh, which it includes, the
// only file with inline assembly. Each function is one instruction, named by its meaning. "System"
// is the scope of the PTX memory model: all GPUs and the host.
//
// An include guard instead of a pragma: tests/device replaces this file by an emulation for CPUs.
#ifndef NICCOLITE_EXECUTOR_CUDA_PTX_CUH
#define NICCOLITE_EXECUTOR_CUDA_PTX_CUH

#include <cstddef>
#include <cstdint>

#include "executor/cuda/interpreter/device_types.h"

namespace niccolite::executor::cuda {

namespace ptx {

__device__ __forceinline__ uint32_t thread() { return threadIdx.x; }
__device__ __forceinline__ uint32_t threads() { return blockDim.x; }
__device__ __forceinline__ uint32_t replica() { return blockIdx.x; }
__device__ __forceinline__ uint32_t pattern_channel() { return blockIdx.y; }
/// The CTA's number in the grid, and the thread's in the CTA, read anew: a value that a kernel
/// needs at its begin and again at its end takes no register in between.
__device__ __forceinline__ uint32_t cta_anew() {
  uint32_t cta;
  asm volatile(
      "{\n\t.reg .u32 x, y, n;\n\t"
      "mov.u32 x, %%ctaid.x;\n\tmov.u32 y, %%ctaid.y;\n\tmov.u32 n, %%nctaid.x;\n\t"
      "mad.lo.u32 %0, y, n, x;\n\t}"
      : "=r"(cta));
  return cta;
}
__device__ __forceinline__ bool is_last_thread_anew() {
  uint32_t is_last;
  asm volatile(
      "{\n\t.reg .u32 t, n;\n\t.reg .pred p;\n\t"
      "mov.u32 t, %%tid.x;\n\tmov.u32 n, %%ntid.x;\n\tadd.u32 t, t, 1;\n\t"
      "setp.eq.u32 p, t, n;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(is_last));
  return is_last != 0;
}
/// Nanoseconds of the GPU's timer, which all its multiprocessors share.
__device__ __forceinline__ uint64_t global_time() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
__device__ __forceinline__ std::byte* shared_memory() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<std::byte*>(dynamic_shared_memory);
}

/// Returns the value so that the compiler knows nothing of it: values derived from it are computed
/// where they are used, not ahead of a loop, in registers that they would take all the time.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ uint64_t opaque(uint64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}

/// Two words as one. Neither has to be there yet: registers are named, not read.
__device__ __forceinline__ uint64_t pair(uint32_t low, uint32_t high) {
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}

/// Looks at a word that take kReportInterval at least, and a second at most: none takes less than
/// 0.15 us.
inline constexpr uint32_t kSpinsPerReport = 1u << 21;
/// Looks at shared memory that take as long as one at a word of another GPU's making: none takes
/// less than 20 ns.
inline constexpr uint32_t kSharedLooksPerSpin = 8;
__device__ __forceinline__ void sleep(uint32_t nanoseconds) {
  asm volatile("nanosleep.u32 %0;" : : "r"(nanoseconds));
}

// ---- control words
__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
__device__ __forceinline__ uint64_t load_relaxed_system(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
}
__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed_system(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed_system(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
/// Stores `value`, and returns the value before. Acquires; releases nothing.
__device__ __forceinline__ uint64_t exchange_acquire_system(uint64_t* address, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acquire.sys.global.exch.b64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(address), "l"(value)
               : "memory");
  return before;
}
/// Adds `value`, and returns the value before. For threads of one GPU; orders nothing else.
__device__ __forceinline__ uint64_t fetch_add_relaxed(uint64_t* address, uint64_t value) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(address), "l"(value)
               : "memory");
  return before;
}
/// Returns an address of shared memory in the form that instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}
/// A counter in shared memory that other threads read and write without a barrier.
__device__ __forceinline__ uint64_t load_relaxed_shared(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.cta.shared.u64 %0, [%1];" : "=l"(value) : "r"(shared_address(address)));
  return value;
}
__device__ __forceinline__ void store_relaxed_shared(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.cta.shared.u64 [%0], %1;" ::"r"(shared_address(address)), "l"(value)
               : "memory");
}
/// Releases this thread's earlier accesses to threads of the CTA that acquire the value.
__device__ __forceinline__ void store_release_shared(uint64_t* address, uint64_t value) {
  asm volatile("st.release.cta.shared.u64 [%0], %1;" ::"r"(shared_address(address)), "l"(value)
               : "memory");
}
__device__ __forceinline__ uint64_t load_acquire_shared(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.cta.shared.u64 %0, [%1];"
               : "=l"(value)
               : "r"(shared_address(address))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_release_shared(uint32_t* address, uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(address)), "r"(value)
               : "memory");
}
__device__ __forceinline__ uint32_t load_acquire_shared(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(address))
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed_shared(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(address)));
  return value;
}
__device__ __forceinline__ void store_relaxed_shared(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(address)), "r"(value)
               : "memory");
}
/// Orders the thread's accesses, and all that it has acquired, before its relaxed stores to come,
/// for all.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// ---- LL words: each of the two is written and read whole; nothing else is ordered by them
__device__ __forceinline__ Words load_words(const std::byte* address) {
  Words words;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.first), "=l"(words.second)
               : "l"(address));
  return words;
}
__device__ __forceinline__ void store_words(std::byte* address, Words words) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(words.first),
               "l"(words.second)
               : "memory");
}

// ---- LL128 lines: a thread's 16 bytes of a line; eight neighbours access their parts by one
// instruction. The PTX memory model does not promise that a line is written and read whole, but
// NVLink and the memory of a GPU do:
__device__ __forceinline__ Words load_line_part(const std::byte* address) {
  return load_words(address);
}
__device__ __forceinline__ void store_line_part(std::byte* address, Words words) {
  store_words(address, words);
}

// ---- data: streamed, so that it does not push the caller's lines out of the first-level cache
__device__ __forceinline__ Vec16 load_vec16(const std::byte* address) {
  Vec16 vec16;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
               : "=l"(vec16.half[0]), "=l"(vec16.half[1])
               : "l"(address));
  return vec16;
}
__device__ __forceinline__ Vec16 load_vec16_shared(const std::byte* address) {
  Vec16 vec16;
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];"
               : "=l"(vec16.half[0]), "=l"(vec16.half[1])
               : "r"(shared_address(address))
               : "memory");
  return vec16;
}
template <typename T>
__device__ __forceinline__ T load_shared(const std::byte* address) {
  T value;
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(shared_address(address)) : "memory");
  } else {
    static_assert(sizeof(T) == 4);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(address)) : "memory");
  }
  return value;
}
__device__ __forceinline__ void store_shared(std::byte* address, uint64_t value) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(shared_address(address)), "l"(value) : "memory");
}
__device__ __forceinline__ void store_vec16(std::byte* address, Vec16 vec16) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(vec16.half[0]),
               "l"(vec16.half[1])
               : "memory");
}
template <typename T>
__device__ __forceinline__ T load(const std::byte* address) {
  T value;
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(address));
  } else {
    uint32_t byte;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(byte) : "l"(address));
    value = static_cast<T>(byte);
  }
  return value;
}
template <typename T>
__device__ __forceinline__ void store(std::byte* address, T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(value) : "memory");
  } else {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(static_cast<uint32_t>(value))
                 : "memory");
  }
}

// ---- barriers: all of the named threads must arrive
__device__ __forceinline__ void barrier_cta() {
  asm volatile("barrier.cta.sync.aligned %0;" ::"n"(static_cast<uint32_t>(Barrier::Cta))
               : "memory");
}
__device__ __forceinline__ void barrier(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Is it true in any thread of the CTA? All must arrive: it is a barrier_cta(), too.
__device__ __forceinline__ bool any_of_cta(bool value) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.or.pred all, %2, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(value)), "n"(static_cast<uint32_t>(Barrier::Cta))
      : "memory");
  return any != 0;
}
__device__ __forceinline__ void barrier_warp() { __syncwarp(); }
/// Is it true in any thread of the warp? All 32 must arrive; they go on together.
__device__ __forceinline__ bool any_of_warp(bool value) {
  return __any_sync(0xffffffffu, value) != 0;
}
/// The value of the thread before, in the first thread its own. All 32 must arrive; they go on
/// together.
__device__ __forceinline__ uint64_t previous_of_warp(uint64_t value) {
  return __shfl_up_sync(0xffffffffu, static_cast<unsigned long long>(value), 1);
}
/// The value of the warp's thread `lane`. All 32 must arrive; they go on together.
__device__ __forceinline__ uint64_t value_of_lane(uint64_t value, uint32_t lane) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(value), static_cast<int>(lane));
}
/// The value of the warp's first thread. All 32 must arrive; they go on together.
__device__ __forceinline__ uint32_t first_of_warp(uint32_t value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

}  // namespace ptx
}  // namespace niccolite::executor::cuda

#include "executor/cuda/ptx/ptx_multicast.cuh"
#include "executor/cuda/ptx/ptx_stages.cuh"

#endif  // NICCOLITE_EXECUTOR_CUDA_PTX_CUH
