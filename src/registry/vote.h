// The vote of all ranks on a step of each: it has failed on all, or on none.
#pragma once

#include "base/status.h"
#include "bootstrap/member.h"

namespace niccolite::registry {

/// Collective: tells all ranks whether the own step has failed. Returns this rank's failure, or
/// else the first failure of another rank, which it names. `member` is null for one rank.
Status vote(bootstrap::Member* member, const Status& mine);

}  // namespace niccolite::registry
