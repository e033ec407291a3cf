#include "executor/host/team.h"

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
  Team team;
  if (first == nullptr) return team;
  size_t offset = 0;
  team.memory_ = machine.multicast_memory(first, &offset);
  if (team.memory_ == nullptr) return {};
  team.base_ = first;
  team.members_.resize(static_cast<size_t>(team.memory_->devices()));
  const size_t needed = static_cast<size_t>(last - first) + launch.team_shape.slots_bytes();
  if (team.members_.size() != static_cast<size_t>(launch.team_ranks) ||
      team.memory_->find(offset, team.members_) < needed) {
    return {};
  }
  return team;
}

}  // namespace niccolite::executor::host
