// The start of a CTA: it copies the launch's tables to shared memory, takes up ports where the last
// operation left them, and advertises buffers to peers.
#pragma once

#include "executor/cuda/interpreter/advertisements.cuh"
#include "executor/cuda/interpreter/cta.cuh"

namespace niccolite::executor::cuda {

/// Takes up a port where the last operation left it, or, of works that take turns, the works before
/// its own will.
/// `advertised`: of a port that advertises, what.
template <typename Operation, bool kAdvertises, bool kMayTakeTurns>
__device__ __forceinline__ void start_port(const LaunchHeader& header, const PortTask& task,
                                           const AdvertisedBlock& advertised, const WorkTask& work,
                                           PortState& state) {
  const uint32_t channel = channel_of(work);
  if (channel >= work.partition.channels) {
    state.control = nullptr;
    return;
  }
  ControlBlock* control = task.control + channel;
  const bool is_send = (task.end & PortTask::kSendEnd) != 0;
  // Written by this rank's last kernel; ordered by the stream.
  const uint64_t first = ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(&control->step));
  const uint64_t base = kMayTakeTurns ? first + work.first_step : first;
  const bool is_direct_get = (task.end & PortTask::kDirectGet) != 0;
  const bool is_direct = is_direct_get || (task.end & PortTask::kDirectPut) != 0;
  // Worked out while the loads are under way: an acquire waits for all.
  uint64_t address = 0;
  if (kAdvertises && is_direct && is_send == is_direct_get)
    address = advertised_address<Operation>(header, work, task, advertised);
  // A sender: [credit], pairs with the [consume] and [resume] of the receiver. A receiver:
  // [arrival], pairs with [publish].
  const uint64_t remote = ptx::load_acquire_system(&control->remote);
  // An advertisement that is found behind an aborted operation may be meant for that one.
  const bool is_closed = base >= kAbortedStep;
  // An end that takes an advertisement is closed until it comes.
  const bool takes_advertisement = is_direct && !is_closed && is_send != is_direct_get;
  if (kAdvertises && is_direct && !is_closed && !takes_advertisement) {
    // As soon as may be: the peer has nothing to do until it comes. [advertisement] pairs with
    // [take]. Relaxed: where data are put, the buffer is free since before the kernel; data that
    // are exposed were there before it, for all GPUs, since the stream has ordered what wrote them.
    const bool serves = Operation::kReduces && address != 0 && advertised.serves != 0 &&
                        can_serve_pulls(header, work);
    ptx::store_relaxed_system(&(task.remote_control + channel)->advertisement,
                              advertisement::of(address, work.tag, serves));
  }
  const bool by_team = (task.end & PortTask::kTeam) != 0;
  state.slots =
      task.slots +
      (Operation::kByTeam && by_team ? header.team_shape : header.shape).slot_offset(channel, 0);
  state.base = base;
  state.end = base + static_cast<uint64_t>(work.partition.rounds) * task.steps;
  state.completed = base;
  state.published = base;
  state.control = control;
  state.advertisement = static_cast<uint64_t>(takes_advertisement          ? Advertisement::Pending
                                              : address != 0 && !is_closed ? Advertisement::Agreed
                                                                           : Advertisement::None);
  state.detached = 0;
  state.remote_control = task.remote_control + channel;
  state.peer = task.end & PortTask::kPeerMask;
  state.other_tag = Awaited::kNoTag;
  state.steps = task.steps;
  state.tag = work.tag;
  state.is_send = is_send;
  state.stays = (task.end & PortTask::kStays) != 0;
  state.is_direct_get = is_direct_get;
  state.own_slots = state.slots;
  state.pulls = static_cast<uint32_t>(Pulls::None);
  state.delivered = 0;
  state.published_delivered = 0;
  state.is_followed = (task.end & PortTask::kFollowed) != 0;
  state.is_relay = (task.end & PortTask::kRelay) != 0;
  state.by_team = by_team;
  if constexpr (Operation::kHasPlaces) {
    state.has_places = (task.end & PortTask::kPlaces) != 0;
    // Behind an aborted operation none are made, since the proxy would offer them for its steps.
    state.in_places = is_send ? remote : is_closed ? state.end : base;
  }
  state.team_end = (task.end & PortTask::kTeamEnd) == 0 ? TeamEnd::None
                   : is_direct                          ? TeamEnd::OfWindows
                                                        : TeamEnd::OfSlots;
  if (is_send) {
    state.cached = takes_advertisement ? base - header.shape.depth : remote;
  } else {
    state.cached = takes_advertisement || is_of_other_call(state, remote)
                       ? base
                       : call_tag::steps_in(remote, base);
  }
  // Nobody reads the step before the next kernel, so that it may be advanced at once rather than at
  // the end, where it would be waited for. (An aborted operation leaves it wrong: its communicator
  // moves no more data.)
  // Works that take turns: later works still read the step, so finish_turns() advances it.
  if (!kMayTakeTurns || (header.flags & kTakesTurns) == 0) {
    ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&control->step), state.end);
  }
  if (!is_send && !is_closed) {
    // [resume] the slots that earlier operations read, whose credit they did not give back.
    // Relaxed: those reads were over when their kernel ended.
    ptx::store_relaxed_system(&state.remote_control->remote, first);
  }
}

/// After a barrier behind all start_port(): the works that take turns on a connection are in one
/// CTA, and the last of them advances its step for all.
__device__ __forceinline__ void finish_turns(const LaunchHeader& header, const PortState* ports) {
  for (uint32_t p = ptx::thread(); p < header.nports; p += ptx::threads()) {
    if (ports[p].control == nullptr || ports[p].is_followed != 0) continue;
    ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&ports[p].control->step), ports[p].end);
  }
}

/// Starts the CTA; called by all its threads. Ends with a barrier. The view has no worker yet.
/// `kAdvertises`: ports may have memory to advertise (Simple).
template <typename Operation, bool kAdvertises>
__device__ __forceinline__ Cta start_cta(const LaunchArgs& args) {
  const LaunchHeader& header = args.header;
  const WorkTask* works = work_tasks(args);
  std::byte* shared = ptx::shared_memory();
  const std::byte* params =
      header.params == nullptr ? args.tables + header.params_at : header.params;
  const uint32_t units = (header.params_bytes - header.staged_at) / sizeof(uint4);
  const auto* source = reinterpret_cast<const uint4*>(params + header.staged_at);
  auto* staged = reinterpret_cast<uint4*>(shared);
  auto* ports = reinterpret_cast<PortState*>(shared + header.ports_at);

  // Two chains of loads should overlap: the tables, and port -> control block. The last threads
  // copy the tables. The ports are spread over the first threads of all warps, because ports that
  // advertise and ports that do not take different branches, and one warp would run them one by
  // one.
  const uint32_t reversed = ptx::threads() - 1 - ptx::thread();
  uint4 first{};
  if (reversed < units) first = source[reversed];
  const uint32_t own_port =
      ptx::thread() % kWarp * (ptx::threads() / kWarp) + ptx::thread() / kWarp;
  for (uint32_t p = own_port; p < header.nports; p += ptx::threads()) {
    // Two wide loads: read field by field, the address of the control block comes one latency late.
    const uint4 parts[2] = {reinterpret_cast<const uint4*>(params)[2 * p],
                            reinterpret_cast<const uint4*>(params)[2 * p + 1]};
    const auto task = bits_as<PortTask>(parts);
    if (task.channel != ptx::pattern_channel()) {
      ports[p].control = nullptr;
      continue;
    }
    AdvertisedBlock advertised{};
    if (kAdvertises && header.advertised_at != 0) {
      advertised = bits_as<AdvertisedBlock>(
          reinterpret_cast<const uint64_t*>(params + header.advertised_at)[p]);
    }
    // A single work needs no look-up before the control block.
    if (header.nworks == 1) {
      start_port<Operation, kAdvertises, /*kMayTakeTurns=*/false>(header, task, advertised,
                                                                  works[0], ports[p]);
    } else {
      start_port<Operation, kAdvertises, !Operation::kReduces>(header, task, advertised,
                                                               works[task.work], ports[p]);
    }
  }
  if (reversed < units) staged[reversed] = first;
  for (uint32_t unit = reversed + ptx::threads(); unit < units; unit += ptx::threads()) {
    staged[unit] = source[unit];
  }
  if constexpr (Operation::kReduces) {
    if (header.device_scale != nullptr && reversed == 0) {
      *reinterpret_cast<uint64_t*>(shared + header.scale_at) =
          load_element<typename Operation::Element>(header.device_scale);
    }
  }
  ptx::barrier_cta();
  if constexpr (!Operation::kReduces) {
    if ((header.flags & kTakesTurns) != 0) finish_turns(header, ports);
  }
  return {header,
          works,
          reinterpret_cast<const CompactInstruction*>(shared + header.instructions_at),
          reinterpret_cast<const PortUse*>(shared + header.uses_at),
          ports,
          reinterpret_cast<std::byte**>(shared + header.pointers_at)};
}

}  // namespace niccolite::executor::cuda
