#include "executor/host/team.h"

#include "executor/protocol/advertisement.h"

namespace niccolite::executor::host {

Team Team::find(gpu::virtual_::VirtualMachine& machine, const Launch& launch) {
  // All ports of a launch are in one team, and in one part of its range, which each member has
  // bound as a whole.
  const std::byte* first = nullptr;
  const std::byte* last = nullptr;
  for (const PortAddress& port : launch.ports) {
    if (!uses_team(port.way)) continue;
    if (first == nullptr || port.team < first) first = port.team;
    if (last == nullptr || port.team > last) last = port.team;
  }
  if (first == nullptr) return {};
  return find(machine, launch.team_ranks, first,
              static_cast<size_t>(last - first) + launch.team_shape.slots_bytes());
}

Team Team::find(gpu::virtual_::VirtualMachine& machine, const Launch& launch, const void* buffer,
                uint64_t bytes, const uint64_t* shifts) {
  if (buffer == nullptr || shifts == nullptr) return {};
  const uint64_t place =
      advertisement::place_of(shifts[launch.program->nranks], reinterpret_cast<uint64_t>(buffer));
  if (place == 0) return {};
  return find(machine, launch.team_ranks, advertisement::address_of(launch.team_windows, place),
              bytes);
}

Team Team::find(gpu::virtual_::VirtualMachine& machine, int ranks, const std::byte* first,
                size_t bytes) {
  Team team;
  size_t offset = 0;
  team.memory_ = machine.multicast_memory(first, &offset);
  if (team.memory_ == nullptr) return {};
  team.base_ = first;
  team.members_.resize(static_cast<size_t>(team.memory_->devices()));
  if (team.members_.size() != static_cast<size_t>(ranks) ||
      team.memory_->find(offset, team.members_) < bytes) {
    return {};
  }
  return team;
}

}  // namespace niccolite::executor::host
