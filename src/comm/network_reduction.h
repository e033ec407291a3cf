// The set-up of a network that reduces (CollNet): every machine's members connect to its reducer
// and try it before it is trusted. What fails on one rank is agreed by all, told in one line, and
// the communicator does without.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/wait.h"
#include "base/wire.h"
#include "planner/settings.h"
#include "transport/net/reducer.h"

namespace niccolite::bootstrap {
class Member;
}

namespace niccolite::comm {

struct ReducerSearch {
  using IsRegistered = std::function<bool(const void*, size_t)>;
  using Export = std::function<Result<gpu::DmaBuffer>(const void*, size_t)>;
  bootstrap::Member& member;
  std::shared_ptr<transport::net::Network> network;  // of this rank; null: sockets
  std::span<const int> machines;                     // by rank
  uint64_t communicator = 0;
  bool kernels_ring = true;          // Reducer::Options
  std::function<void(Status)> fail;  // the same
  IsRegistered is_registered;        // the same
  Export export_memory;              // the same
  Deadline deadline;
};

/// The outcome, equal on all ranks but for the reducer.
struct FoundReducer {
  planner::Reductions reducible;                     // none: there is no reducer
  std::shared_ptr<transport::net::Reducer> reducer;  // null also on ranks that are no members
};

/// Collective over all ranks. Only the bootstrap's errors are errors of it.
Result<FoundReducer> find_reducer(const ReducerSearch& search);

}  // namespace niccolite::comm
