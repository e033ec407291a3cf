// The ends of a landing (protocol/landing.h) in a kernel: what lanes do. What the service warp does
// stands in service_warp.cuh.
//
//   receiver's lane   offers its output as soon as it starts, then waits for the steps alone
//   sender's lane     asks destination_of() where to store, once the port is open
#pragma once

#include "executor/cuda/cta.cuh"
#include "executor/protocol/landing.h"

namespace niccolite::executor::cuda {

__device__ __forceinline__ bool has_agreed(const PortState& port) {
  return port.landing == static_cast<uint64_t>(Landing::Agreed);
}

/// By one thread of a lane, before it waits for anything: if data may land, tells the sender where.
/// `target` is where the lane's first chunk belongs; null if there is none.
__device__ __forceinline__ void offer_landing(const Cta& cta, PortState& port,
                                              const std::byte* target) {
  if (port.landing != static_cast<uint64_t>(Landing::Pending)) return;
  const auto address = reinterpret_cast<uint64_t>(target);
  const bool offers = cta.work->can_land != 0 && cta.work->width >= landing::kAlignment &&
                      address != 0 && landing::fits(address);
  // [offer] pairs with [take]. Relaxed: the buffer is free since before the kernel.
  ptx::store_relaxed_system(&port.remote_control->offer,
                            landing::offer_of(offers ? address : 0, port.tag));
  // After the offer, for the service warp, which may have to take it back.
  ptx::store_release_shared(&port.landing,
                            static_cast<uint64_t>(offers ? Landing::Agreed : Landing::None));
}

/// Where a sender stores the chunk of a round. The port is open for its step.
template <typename Operation>
__device__ __forceinline__ std::byte* destination_of(const Cta& cta, const PortState& port,
                                                     const PortUse& use, uint32_t round) {
  if (has_agreed(port)) {
    // One step in each round (Port::lands).
    return port.slots +
           uint64_t{round} * cta.work->partition.chunk * Operation::element_bytes(cta.header);
  }
  return port.slots + cta.header.shape.slot_offset(0, step_of(port, use, round));
}

/// By one thread of an aborted lane, when all that the lane has stored is stored.
__device__ __forceinline__ void leave_landings(const Cta& cta, const LaneTask& task) {
  for (uint32_t i = task.first; i < uint32_t{task.first} + task.count; ++i) {
    const CompactInstruction& instruction = cta.instructions[i];
    for (uint32_t s = 0; s < instruction.send_count; ++s) {
      ptx::store_release_shared(&cta.ports[cta.uses[instruction.send + s].port].left, 1);
    }
  }
}

}  // namespace niccolite::executor::cuda
