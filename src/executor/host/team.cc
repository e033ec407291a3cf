#include "executor/host/team.h"

namespace niccolite::executor::host {

Team Team::find(gpu::virtual_::VirtualMachine& machine, const Launch& launch) {
  Team team;
  for (size_t port = 0; port < launch.ports.size(); ++port) {
    if (!uses_team(launch.ports[port].way)) continue;
    // All ports of a launch are in one team. Each member has bound the whole range.
    const std::byte* const address = launch.ports[port].team;
    size_t offset = 0;
    team.memory_ = machine.multicast_memory(address, &offset);
    if (team.memory_ == nullptr) return {};
    team.base_ = address - offset;
    team.members_.resize(static_cast<size_t>(team.memory_->devices()));
    const size_t needed = offset + launch.team_shape.slots_bytes();
    if (team.members_.size() != static_cast<size_t>(launch.team_ranks) ||
        team.memory_->find(0, team.members_) < needed) {
      return {};
    }
    break;
  }
  return team;
}

}  // namespace niccolite::executor::host
