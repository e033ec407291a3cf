// OneSided: the one-sided operations of one communicator: puts into windows, signals, waits for
// signals. They are ordered by their streams alone, and not with the communicator's other
// operations: a wait on one stream must not hold up the put on another that its peer is waiting
// for. Thread safety: run() by one thread at a time, answer() by any.
#pragma once

#include <memory>
#include <vector>

#include "executor/one_sided.h"
#include "operations/one_sided_call.h"
#include "operations/work_in_flight.h"
#include "registry/windows.h"
#include "transport/signals.h"

namespace niccolite::operations {

class OneSided {
 public:
  /// The arguments outlive this. See transport::Signals.
  OneSided(gpu::Machine& machine, int device, const bootstrap::Member* member,
           executor::ControlWords* control, transport::Endpoint::Ask ask,
           std::shared_ptr<GraphUses> graphs);

  /// Queues the call, or adds it to the graph that its stream captures. The first to a peer asks it
  /// for its counters.
  Status run(const OneSidedCall& call, const Deadline& deadline);
  Result<Bytes> answer(int from, std::span<const std::byte> request) {
    return signals_.answer(from, request);
  }
  /// Device memory that signals take.
  size_t allocated_bytes() { return signals_.allocated_bytes(); }
  /// Waits until everything queued is done, launches of graphs included; false at the deadline.
  Result<bool> drain(Deadline deadline) { return in_flight_.drain(deadline); }

 private:
  Status put(const OneSidedCall& call, const Deadline& deadline);
  Status wait(const OneSidedCall& call);

  gpu::Machine& machine_;
  const int device_;
  executor::ControlWords* const control_;
  transport::Signals signals_;
  WorkInFlight in_flight_;
};

}  // namespace niccolite::operations
