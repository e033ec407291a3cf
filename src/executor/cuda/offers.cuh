// The ends of an offer (protocol/offer.h) in a kernel: what lanes do. What the service warp does
// stands in service_warp.cuh.
//
//   who offers   does so as soon as the lane starts, then waits for the other (kernel.cuh)
//   who takes    asks chunk_at() where to store, or to read, once the port is open
#pragma once

#include "executor/cuda/cta.cuh"
#include "executor/protocol/offer.h"

namespace niccolite::executor::cuda {

__device__ __forceinline__ bool has_agreed(const PortState& port) {
  return port.offer == static_cast<uint64_t>(Offer::Agreed);
}
/// Of a port with an offer: is it this end that makes it? Else it takes one.
__device__ __forceinline__ bool makes_offer(const PortState& port) {
  return (port.is_send != 0) == (port.lends != 0);
}

/// Where the port's peer sees `memory`, of the buffer that the port offers; 0: nowhere. `is_open`:
/// those that see open buffers (PortState::opens) see it at its own address.
__device__ __forceinline__ uint64_t seen_by_peer(const Cta& cta, const PortState& port,
                                                 const std::byte* memory, bool is_open) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  if (address == 0) return 0;
  const uint64_t* shifts = port.is_send ? cta.work->input_shifts : cta.work->output_shifts;
  if (shifts == nullptr) return is_open && port.opens != 0 ? address : 0;
  // Written by the host before this kernel was queued.
  const uint64_t shift =
      ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(shifts + port.peer));
  return offer::seen_by(shift, address);
}

/// By one thread of a lane, before it waits for anything: if it is this end that offers, does so.
/// `memory` is where the lane's first chunk lies, or belongs; null if it cannot be offered.
/// `is_open`: see seen_by_peer(). `serves`: as a lender, the lane serves requests.
__device__ __forceinline__ void make_offer(const Cta& cta, PortState& port, const std::byte* memory,
                                           bool is_open, bool serves) {
  if (port.offer != static_cast<uint64_t>(Offer::Pending) || !makes_offer(port)) return;
  const uint64_t address = seen_by_peer(cta, port, memory, is_open);
  const bool offers = address != 0 && offer::fits(address);
  // [offer] pairs with [take]. Relaxed: where data land, the buffer is free since before the
  // kernel; data that are lent were there before it, for all GPUs, since the stream has ordered
  // what wrote them.
  ptx::store_relaxed_system(&port.remote_control->offer,
                            offer::of(offers ? address : 0, port.tag, offers && serves));
  // After the offer, for the service warp, which may have to take it back.
  ptx::store_release_shared(&port.offer,
                            static_cast<uint64_t>(offers ? Offer::Agreed : Offer::None));
}

/// Where the chunk of a round lies, or belongs: in memory that was offered, if this end has taken
/// it, else in a slot. The port is open for its step.
template <typename Operation>
__device__ __forceinline__ std::byte* chunk_at(const Cta& cta, const PortState& port,
                                               const PortUse& use, uint32_t round) {
  if (has_agreed(port) && !makes_offer(port)) {
    // One step in each round: the lane of who offers has one instruction.
    return port.slots +
           uint64_t{round} * cta.work->partition.chunk * Operation::element_bytes(cta.header);
  }
  return port.slots + cta.header.shape.slot_offset(0, step_of(port, use, round));
}

/// Calls function(port) for each port of an instruction.
template <typename Function>
__device__ __forceinline__ void for_each_port_of(const Cta& cta,
                                                 const CompactInstruction& instruction,
                                                 Function&& function) {
  for (uint32_t r = 0; r < instruction.receive_count; ++r) {
    function(cta.ports[cta.uses[instruction.receive + r].port]);
  }
  for (uint32_t s = 0; s < instruction.send_count; ++s) {
    function(cta.ports[cta.uses[instruction.send + s].port]);
  }
}

/// By one thread of an aborted lane, when all that the lane has stored is stored, and all that it
/// reads is read.
__device__ __forceinline__ void leave_offers(const Cta& cta) {
  const LaneTask& task = lane_of_warp(cta.header);  // looked up: it need not be kept until then
  for (uint32_t i = task.first; i < uint32_t{task.first} + task.count; ++i) {
    for_each_port_of(cta, cta.instructions[i],
                     [](PortState& port) { ptx::store_release_shared(&port.left, 1); });
  }
}

}  // namespace niccolite::executor::cuda
