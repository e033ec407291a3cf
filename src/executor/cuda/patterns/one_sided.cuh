// The kernels of one-sided operations (protocol/signal.h). Launch shape: one CTA; a put has up to
// 1,024 threads, a wait one warp. Both are limited by latency: parameters, the counters in the own
// memory, a store to the peer's.
#pragma once

#include "executor/command.h"
#include "executor/cuda/patterns/one_sided_args.h"
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

/// Copies by all threads of the CTA, each its own parts.
template <typename T, typename Load, typename Store>
__device__ __forceinline__ void copy_parts(std::byte* target, const std::byte* source,
                                           uint64_t bytes, Load load, Store store) {
  for (uint64_t at = ptx::thread() * sizeof(T); at + sizeof(T) <= bytes;
       at += ptx::threads() * sizeof(T)) {
    store(target + at, load(source + at));
  }
}

__device__ __forceinline__ void run_put(const PutArgs& args) {
  const bool is_aligned =
      (reinterpret_cast<uintptr_t>(args.source) | reinterpret_cast<uintptr_t>(args.target)) %
          sizeof(Vec16) ==
      0;
  const uint64_t packed = is_aligned ? args.bytes / sizeof(Vec16) * sizeof(Vec16) : 0;
  copy_parts<Vec16>(args.target, args.source, packed, ptx::load_vec16, ptx::store_vec16);
  copy_parts<uint8_t>(args.target + packed, args.source + packed, args.bytes - packed,
                      ptx::load<uint8_t>, ptx::store<uint8_t>);
  ptx::barrier_cta();
  if (ptx::thread() != 0) return;
  const uint64_t number = ptx::fetch_add_relaxed(&args.own->begun, 1);
  // [acquire] the signal of the put before, from its [turn]. Its kernel runs: it is not long.
  while (ptx::load_acquire_system(&args.own->raised) != number) {
  }
  // [publish] the data of all threads, and what the stream did before, to the wait's [consume].
  ptx::fence_system();
  ptx::store_relaxed_system(args.arrived, number + 1);
  // [turn] to the next put.
  ptx::fence_system();
  ptx::store_relaxed_system(&args.own->raised, number + 1);
}

__device__ __forceinline__ void run_signal_wait(const SignalWaitArgs& args) {
  if (ptx::thread() >= args.items) return;
  const SignalWaitArgs::Item item = args.item[ptx::thread()];
  const uint64_t awaited = ptx::fetch_add_relaxed(&item.line->claimed, item.count) + item.count;
  constexpr uint32_t kSpinsPerLook = 4096;
  for (uint32_t spins = 1;; ++spins) {
    // [consume] acquires the data put before the signals, from [publish]; the kernel's end hands
    // them on.
    if (has_arrived(ptx::load_acquire_system(&item.line->arrived), awaited)) return;
    // Host memory, a microsecond away. Relaxed: the kernel just ends.
    if (spins % kSpinsPerLook == 0 &&
        ptx::load_relaxed_system(args.command) == static_cast<uint32_t>(Command::End)) {
      return;
    }
  }
}

}  // namespace niccolite::executor::cuda

extern "C" __global__ void __launch_bounds__(1024, 1)
    niccolite_put(const __grid_constant__ niccolite::executor::cuda::PutArgs args) {
  niccolite::executor::cuda::run_put(args);
}
extern "C" __global__ void __launch_bounds__(32, 1)
    niccolite_signal_wait(const __grid_constant__ niccolite::executor::cuda::SignalWaitArgs args) {
  niccolite::executor::cuda::run_signal_wait(args);
}
