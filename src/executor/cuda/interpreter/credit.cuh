// Credit in the protocols whose data carries its own flag (LL, LL128): looked at by every thread
// that sends, given back once a worker has read its slots.
#pragma once

#include "executor/cuda/interpreter/cta.cuh"
#include "executor/cuda/interpreter/wait.cuh"

namespace niccolite::executor::cuda {

__device__ __forceinline__ std::byte* slot_of(const Cta& cta, const PortState& port,
                                              uint64_t step) {
  return port.slots + cta.header.shape.slot_offset(0, step);
}

/// Waits until the first warp of the worker has seen the credit for `step`; false: aborted.
__device__ __forceinline__ bool wait_for_copy_of_credit(const Cta& cta, const PortState& port,
                                                        uint64_t step) {
  const auto depth = static_cast<int64_t>(cta.header.shape.depth);
  for (Wait wait(cta.header, *cta.work);;) {
    for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
      // Stores to the slot depend on this read, and its value on the first warp's look.
      if (static_cast<int64_t>(step - ptx::load_acquire_shared(&port.cached)) < depth) return true;
    }
    if (!wait.keep_going([&] {
          return Awaited{port.peer, Awaited::kNoTag, ReportKind::WaitingForCredit};
        }))
      return false;
  }
}

/// Waits until the slot of `step` may be written; false: aborted. Each thread of the worker for
/// itself. Of credit in the host's memory (kCountersInHost) the first warp keeps a copy for the
/// others, which look there alone: a multiprocessor loads a word of the host's memory for one warp
/// after the other, 1.2 us each.
__device__ __forceinline__ bool wait_for_credit(const Cta& cta, const WorkerThreads& worker,
                                                PortState& port, uint64_t step) {
  const auto depth = static_cast<int64_t>(cta.header.shape.depth);
  if (static_cast<int64_t>(step - ptx::load_relaxed_shared(&port.cached)) < depth) return true;
  if ((cta.header.flags & kCountersInHost) != 0 && worker.rank >= kWarp)
    return wait_for_copy_of_credit(cta, port, step);
  for (Wait wait(cta.header, *cta.work);;) {
    // [credit] pairs with the receiver's [consume].
    const uint64_t seen = ptx::load_acquire_system(&port.control->remote);
    // The copy saves other threads the look. Relaxed: each thread's copy is true, and stores to the
    // slot depend on it.
    ptx::store_relaxed_shared(&port.cached, seen);
    if (static_cast<int64_t>(step - seen) < depth) return true;
    if (!wait.keep_going([&] {
          return Awaited{port.peer, Awaited::kNoTag, ReportKind::WaitingForCredit};
        }))
      return false;
  }
}

/// Gives back the slots that `instruction` has read if the sender can need them in this operation.
/// All threads of the worker call it, also after they saw an abort. kHasRelays: a proxy gets all
/// slots back (protocol/relay.h), except from works that take turns.
template <bool kHasRelays = false>
__device__ __forceinline__ void give_credit(const Cta& cta, const WorkerThreads& worker,
                                            const CompactInstruction& instruction, uint32_t round,
                                            bool live) {
  if (!(instruction.flags & kGivesCredit)) return;
  worker.barrier();
  const PortUse* receives = cta.uses + instruction.receive;
  for (uint32_t r = worker.rank; live && r < instruction.receive_count; r += worker.size) {
    const PortState& port = cta.ports[receives[r].port];
    const uint64_t step = step_of(port, receives[r], round);
    const bool gives_all =
        kHasRelays && port.is_relay != 0 && (cta.header.flags & kTakesTurns) == 0;
    if (!gives_all && !needs_credit(cta, port, step)) continue;
    // [consume] all threads have used the data that they read before they came to the barrier.
    // Relaxed: a store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&port.remote_control->remote, step + 1);
  }
}

}  // namespace niccolite::executor::cuda
