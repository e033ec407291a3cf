// A team of ranks (ncclTeam_t) in Python: a tuple, which nccl.core.NCCLTeam is made of.
#pragma once

#include <array>

#include "nccl_device.h"

namespace niccolite::python {

using Team = std::array<int, 3>;  // ranks, the caller's place, distance in the communicator

inline ncclTeam_t as_team(const Team& team) { return {team[0], team[1], team[2]}; }
inline Team from_team(const ncclTeam_t& team) { return {team.nRanks, team.rank, team.stride}; }

}  // namespace niccolite::python
