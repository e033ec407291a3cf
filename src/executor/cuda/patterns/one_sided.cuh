// The kernels of one-sided operations (protocol/signal.h). Launch shape: one CTA; a put has up to
// 1,024 threads, a wait one warp. Both are limited by latency: parameters, the counters in the own
// memory, a store to the peer's.
#pragma once

#include "executor/command.h"
#include "executor/cuda/patterns/one_sided_args.h"
#include "executor/cuda/ptx/ptx.cuh"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/put.h"
#include "executor/protocol/relay.h"

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

__device__ __forceinline__ void copy_by_cta(std::byte* target, const std::byte* source,
                                            uint64_t bytes) {
  const bool is_aligned =
      (reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target)) % sizeof(Vec16) ==
      0;
  const uint64_t packed = is_aligned ? bytes / sizeof(Vec16) * sizeof(Vec16) : 0;
  copy_parts<Vec16>(target, source, packed, ptx::load_vec16, ptx::store_vec16);
  copy_parts<uint8_t>(target + packed, source + packed, bytes - packed, ptx::load<uint8_t>,
                      ptx::store<uint8_t>);
}

__device__ __forceinline__ void run_put(const PutArgs& args) {
  copy_by_cta(args.target, args.source, args.bytes);
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

constexpr uint32_t kSpinsPerLook = 4096;
/// Host memory, a microsecond away. Relaxed: the kernel just ends.
__device__ __forceinline__ bool is_to_end(uint32_t spins, const uint32_t* command) {
  return spins % kSpinsPerLook == 0 &&
         ptx::load_relaxed_system(command) == static_cast<uint32_t>(Command::End);
}

// Puts to one rank take turns: the kernel may wait for the network, and for other kernels that do.
__device__ __forceinline__ void run_relayed_put(const RelayedPutArgs& args) {
  constexpr FifoShape kShape = kPutShape;  // the device has no address of the other
  __shared__ bool is_ended;
  __shared__ uint64_t first_step;
  uint64_t number = 0;
  if (ptx::thread() == 0) {
    is_ended = false;
    number = ptx::fetch_add_relaxed(&args.own->begun, 1);
    // [acquire] the connection's step of the put before, from its [turn].
    for (uint32_t spins = 1; ptx::load_acquire_system(&args.own->raised) != number; ++spins)
      if (is_to_end(spins, args.command)) {
        is_ended = true;
        break;
      }
    first_step = args.control->step;
  }
  ptx::barrier_cta();
  uint64_t step = first_step;
  uint64_t at = 0;
  do {
    if (ptx::thread() == 0 && !is_ended) {
      // [credit] the proxy has read the slot.
      for (uint32_t spins = 1;
           ptx::load_acquire_system(&args.control->remote) + kShape.depth <= step; ++spins)
        if (is_to_end(spins, args.command)) {
          is_ended = true;
          break;
        }
    }
    ptx::barrier_cta();
    if (is_ended) return;
    std::byte* const slot = args.slots + kShape.slot_offset(0, step);
    const PutHeader header = put_header(args.window, args.offset, args.bytes, at);
    if (ptx::thread() == 0) *reinterpret_cast<PutHeader*>(slot) = header;
    copy_by_cta(slot + kPutDataAt, args.source + at, header.bytes);
    ptx::barrier_cta();
    at += header.bytes;
    ++step;
    if (ptx::thread() == 0) {
      args.notes[(step - 1) & (kShape.depth - 1)] =
          relay::note_of(kPutDataAt + header.bytes, /*tag=*/0);
      // [publish] the slot's content, to the proxy's [arrival].
      ptx::fence_system();
      ptx::store_relaxed_system(&args.remote_control->remote, call_tag::tail(step, /*tag=*/0));
    }
  } while (at < args.bytes);
  if (ptx::thread() != 0) return;
  args.control->step = step;
  // [turn] to the next put.
  ptx::fence_system();
  ptx::store_relaxed_system(&args.own->raised, number + 1);
}

__device__ __forceinline__ void run_signal_wait(const SignalWaitArgs& args) {
  if (ptx::thread() >= args.items) return;
  const SignalWaitArgs::Item item = args.item[ptx::thread()];
  const uint64_t awaited = ptx::fetch_add_relaxed(&item.line->claimed, item.count) + item.count;
  for (uint32_t spins = 1;; ++spins) {
    // [consume] acquires the data put before the signals, from [publish]; the kernel's end hands
    // them on.
    if (has_arrived(ptx::load_acquire_system(&item.line->arrived), awaited)) return;
    if (is_to_end(spins, args.command)) return;
  }
}

}  // namespace niccolite::executor::cuda

extern "C" __global__ void __launch_bounds__(1024, 1)
    niccolite_put(const __grid_constant__ niccolite::executor::cuda::PutArgs args) {
  niccolite::executor::cuda::run_put(args);
}
extern "C" __global__ void __launch_bounds__(1024, 1)
    niccolite_relayed_put(const __grid_constant__ niccolite::executor::cuda::RelayedPutArgs args) {
  niccolite::executor::cuda::run_relayed_put(args);
}
extern "C" __global__ void __launch_bounds__(32, 1)
    niccolite_signal_wait(const __grid_constant__ niccolite::executor::cuda::SignalWaitArgs args) {
  niccolite::executor::cuda::run_signal_wait(args);
}
