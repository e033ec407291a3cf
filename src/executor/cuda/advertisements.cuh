// The ends of an advertisement (protocol/advertisement.h) in a kernel: what workers do. What the
// service warp does stands in service_warp.cuh.
//
//   who advertises   does so as soon as the worker starts, then waits for the other (kernel.cuh)
//   who takes    asks chunk_at() where to store, or to read, once the port is open
#pragma once

#include "executor/cuda/cta.cuh"
#include "executor/protocol/advertisement.h"

namespace niccolite::executor::cuda {

__device__ __forceinline__ bool has_agreed(const PortState& port) {
  return port.advertisement == static_cast<uint64_t>(Advertisement::Agreed);
}
/// Of a port with an advertisement: is it this end that makes it? Else it takes one.
__device__ __forceinline__ bool makes_advertisement(const PortState& port) {
  return (port.is_send != 0) == (port.is_direct_get != 0);
}

/// Where the port's peer sees `memory`, of the buffer that the port advertises; 0: nowhere.
/// `is_open`: those that see open buffers (PortState::opens) see it at its own address.
__device__ __forceinline__ uint64_t seen_by_peer(const Cta& cta, const PortState& port,
                                                 const std::byte* memory, bool is_open) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  if (address == 0) return 0;
  const uint64_t* shifts = port.is_send ? cta.work->input_shifts : cta.work->output_shifts;
  if (shifts == nullptr) return is_open && port.opens != 0 ? address : 0;
  // Written by the host before this kernel was queued.
  const uint64_t shift =
      ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(shifts + port.peer));
  return advertisement::seen_by(shift, address);
}

/// By one thread of a worker, before it waits for anything: if it is this end that advertises, does
/// so. `memory` is where the worker's first chunk lies, or belongs; null if it cannot be
/// advertised. `is_open`: see seen_by_peer(). `serves`: as an exposing sender, the worker serves
/// pulls.
__device__ __forceinline__ void make_advertisement(const Cta& cta, PortState& port,
                                                   const std::byte* memory, bool is_open,
                                                   bool serves) {
  if (port.advertisement != static_cast<uint64_t>(Advertisement::Pending) ||
      !makes_advertisement(port))
    return;
  const uint64_t address = seen_by_peer(cta, port, memory, is_open);
  const bool advertises = address != 0 && advertisement::fits(address);
  // [advertisement] pairs with [take]. Relaxed: where data are put, the buffer is free since before
  // the kernel; data that are exposed were there before it, for all GPUs, since the stream has
  // ordered what wrote them.
  ptx::store_relaxed_system(
      &port.remote_control->advertisement,
      advertisement::of(advertises ? address : 0, port.tag, advertises && serves));
  // After the advertisement, for the service warp, which may have to take it back.
  ptx::store_release_shared(
      &port.advertisement,
      static_cast<uint64_t>(advertises ? Advertisement::Agreed : Advertisement::None));
}

/// Where the chunk of a round lies, or belongs: in memory that was advertised, if this end has
/// taken it, else in a slot. The port is open for its step.
template <typename Operation>
__device__ __forceinline__ std::byte* chunk_at(const Cta& cta, const PortState& port,
                                               const PortUse& use, uint32_t round) {
  if (has_agreed(port) && !makes_advertisement(port)) {
    // One step in each round: the worker of who advertises has one instruction.
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

/// By one thread of an aborted worker, when all that the worker has stored is stored, and all that
/// it reads is read.
__device__ __forceinline__ void leave_advertisements(const Cta& cta) {
  const WorkerTask& task = worker_of_warp(cta.header);  // looked up: it need not be kept until then
  for (uint32_t i = task.first; i < uint32_t{task.first} + task.count; ++i) {
    for_each_port_of(cta, cta.instructions[i],
                     [](PortState& port) { ptx::store_release_shared(&port.detached, 1); });
  }
}

}  // namespace niccolite::executor::cuda
