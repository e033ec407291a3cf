// The ends of an advertisement (protocol/advertisement.h) in a kernel: the part of workers. The
// part of the service warp stands in service_warp.cuh.
//
//   who advertises  does so as the CTA starts (cta_start.cuh), then waits for the other (kernel.cuh)
//   who takes       asks chunk_at() where to store, or to read, once the port is open
#pragma once

#include "executor/cuda/interpreter/cta.cuh"
#include "executor/protocol/advertisement.h"

namespace niccolite::executor::cuda {

__device__ __forceinline__ bool has_agreed(const PortState& port) {
  return port.advertisement == static_cast<uint64_t>(Advertisement::Agreed);
}
/// Does this end of a port with an advertisement make it? Otherwise it takes one.
__device__ __forceinline__ bool makes_advertisement(const PortState& port) {
  return (port.is_send != 0) == (port.is_direct_get != 0);
}

/// Returns the place of the first chunk of the port's worker; null if it is in no memory that could
/// be advertised.
template <typename Operation>
__device__ __forceinline__ const std::byte* advertised_memory(const LaunchHeader& header,
                                                              const WorkTask& work,
                                                              const AdvertisedBlock& advertised) {
  const Partition& partition = work.partition;
  const uint32_t channel = channel_of(work);
  if (partition.count_from(advertised.chunk_block, channel) == 0) return nullptr;
  const std::byte* buffer = work.input;
  if (advertised.buffer == OperandBuffer::Input) {
    if (Operation::kReduces && (header.flags & kScalesInput) != 0) return nullptr;
  } else if (advertised.buffer == OperandBuffer::Output) {
    buffer = work.output;
  } else {
    return nullptr;  // nobody sees the scratch memory of others
  }
  return buffer + (advertised.block * partition.block_stride + partition.start_of(channel, 0)) *
                      Operation::element_bytes(header);
}

/// Returns the place of memory in the windows that a team reaches; 0: it has none. `shifts`: of its
/// buffer.
__device__ __forceinline__ uint64_t place_of(const LaunchHeader& header, const uint64_t* shifts,
                                             uint64_t address) {
  if (shifts == nullptr || header.team_windows == nullptr) return 0;
  // Written by the host before this kernel was queued.
  return advertisement::place_of(
      ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(shifts + header.place_at)), address);
}

/// Returns the address at which the port's peer sees that memory, or its place in a team's windows;
/// 0: nowhere, and data go through slots.
template <typename Operation>
__device__ __forceinline__ uint64_t advertised_address(const LaunchHeader& header,
                                                       const WorkTask& work, const PortTask& port,
                                                       const AdvertisedBlock& advertised) {
  const auto address =
      reinterpret_cast<uint64_t>(advertised_memory<Operation>(header, work, advertised));
  if (address == 0) return 0;
  const bool is_send = (port.end & PortTask::kSendEnd) != 0;
  const uint64_t* shifts = is_send ? work.input_shifts : work.output_shifts;
  uint64_t seen = 0;
  if (Operation::kByTeam && (port.end & PortTask::kTeam) != 0) {
    return place_of(header, shifts, address);
  }
  if (shifts != nullptr) {
    // Written by the host before this kernel was queued.
    seen = advertisement::seen_by(ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(
                                      shifts + (port.end & PortTask::kPeerMask))),
                                  address);
  } else if ((is_send ? work.can_get : work.can_put) != 0 && (port.end & PortTask::kOpens) != 0) {
    seen = address;
  }
  return advertisement::fits(seen) ? seen : 0;
}

/// Can pulls be served, by workers that have kServesPulls? Known from the start.
__device__ __forceinline__ bool can_serve_pulls(const LaunchHeader& header, const WorkTask& work) {
  return header.pull_bytes != 0 && work.width >= kVec16;
}

/// Returns the place of a round's chunk: in memory that was advertised, if this end has
/// taken it, else in a slot. The port is open for its step.
template <typename Operation>
__device__ __forceinline__ std::byte* chunk_at(const Cta& cta, const PortState& port,
                                               const PortUse& use, uint32_t round) {
  if (has_agreed(port) && !makes_advertisement(port)) {
    // One step in each round: the worker of who advertises has one instruction.
    return port.slots +
           uint64_t{round} * cta.work->partition.chunk * Operation::element_bytes(cta.header);
  }
  const uint64_t step = step_of(port, use, round);
  if (Operation::kByTeam && port.by_team != 0)
    return port.slots + cta.header.team_shape.slot_offset(0, step);
  return port.slots + cta.header.shape.slot_offset(0, step);
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

/// Called by one thread of an aborted worker, when all that the worker has stored is stored, and
/// all that it reads is read.
__device__ __forceinline__ void leave_advertisements(const Cta& cta, const WorkerTask& task) {
  for (uint32_t i = task.first; i < uint32_t{task.first} + task.count; ++i) {
    for_each_port_of(cta, cta.instructions[i],
                     [](PortState& port) { ptx::store_release_shared(&port.detached, 1); });
  }
}
__device__ __forceinline__ void leave_advertisements(const Cta& cta) {
  leave_advertisements(cta, worker_of_warp(cta.header));  // it need not be kept until then
}

}  // namespace niccolite::executor::cuda
