// BufferComparison: when the ranks of a multicast team compare the buffers of their calls
// (registry/team_buffers.h), in which they wait for each other.
//
//   captured collectives   each, as it is captured
//   live ones              before a collective on which ranks agree when they have buffers to compare:
//                          a turn of the only kind of a PlanAgreement, to reach and back to slots
//
// Thread safety: note() by any thread, all else by one thread at a time.
#pragma once

#include <span>
#include <vector>

#include "calls/task.h"
#include "operations/plan_agreement.h"
#include "registry/team_buffers.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::operations {

class BufferComparison {
 public:
  struct Options {
    gpu::Machine& machine;
    int device;
    int rank;
    int nranks;
    const Abort& abort;        // see PlanAgreement
    PlanAgreement::Tell tell;  // for the peer's note()
    registry::TeamBuffers& buffers;
    registry::TeamBuffers::Reach reach;
    bool of_captured;  // equal on all ranks
  };
  explicit BufferComparison(Options options);

  /// Do the calls of a group begin with compare()? The same on all ranks.
  Result<bool> is_due(std::span<const calls::Task> tasks);
  /// Collective, where it is due. Returns the buffers that the team reaches in a graph.
  Result<std::vector<registry::CapturedBuffer>> compare(std::span<const calls::Task> tasks);
  /// The calls of the last is_due() have been launched.
  void launched();

  /// Takes a message of rank `from`; see PlanAgreement::note().
  Status note(int from, std::span<const std::byte> message) {
    return agreement_.note(from, message);
  }

 private:
  static constexpr PlanAgreement::Kinds kTurn = 1;
  const Options options_;
  PlanAgreement agreement_;
  uint64_t launched_ = 0;  // live collectives
  uint64_t begun_ = 0;
  PlanAgreement::Kinds turn_ = 0;      // of the last comparison
  PlanAgreement::Kinds due_turn_ = 0;  // of the last is_due()
  PlanAgreement::Kinds wished_ = 0;
  bool is_captured_ = false;  // the calls of the last is_due()
};

}  // namespace niccolite::operations
