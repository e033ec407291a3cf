// OneSided: the one-sided operations of one communicator: puts into windows, signals, waits for
// signals. They are ordered by their streams alone, and not with the communicator's other
// operations: a wait on one stream must not hold up the put on another that its peer is waiting
// for. Puts to ranks of other machines go by the network (executor/protocol/put.h), and land()
// takes theirs. Thread safety: run() by one thread at a time, answer() by any, land() by one thread
// at a time, awaited() by any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "executor/one_sided.h"
#include "operations/one_sided_call.h"
#include "operations/work_in_flight.h"
#include "registry/windows.h"
#include "transport/signals.h"

namespace niccolite::operations {

class OneSided {
 public:
  struct Options {
    gpu::Machine& machine;
    int device = 0;
    const bootstrap::Member* member = nullptr;  // null: one rank
    executor::ControlWords* control = nullptr;
    transport::Endpoint::Ask ask{};  // see transport::Signals
    std::shared_ptr<GraphUses> graphs{};
    std::function<bool(int peer)> is_remote{};  // on another machine?
    /// The sending end of the connection for puts to such a peer (transport::Endpoint).
    std::function<Result<executor::PortAddress>(int peer, const Deadline& deadline)> connect{};
    /// Null: no live window of this rank's has that number.
    std::function<std::shared_ptr<const registry::Window>(uint64_t number)> find_window{};
  };
  /// All that is pointed to outlives this.
  explicit OneSided(Options options);

  /// Queues the call, or adds it to the graph that its stream captures. The first to a peer asks it
  /// for its counters.
  Status run(const OneSidedCall& call, const Deadline& deadline);
  Result<Bytes> answer(int from, std::span<const std::byte> request) {
    return signals_.answer(from, request);
  }
  /// A chunk of a put of a rank of another machine has come (transport::PutSink): stores it, and
  /// raises the signal behind the last one. Refuses a chunk that does not lie in a window. On the
  /// thread of a proxy, chunks of one peer one after the other.
  Status land(int from, std::span<const std::byte> chunk);
  /// Returns a rank for which work on a stream waits, and in which call, of the ranks that
  /// `is_gone` names; none: no work waits for them. Any thread.
  std::optional<std::pair<int, std::string_view>> awaited(
      const std::function<bool(int peer)>& is_gone) EXCLUDES(mutex_);
  /// Device memory that signals take.
  size_t allocated_bytes() { return signals_.allocated_bytes(); }
  /// Waits until everything queued is done, launches of graphs included; false at the deadline.
  Result<bool> drain(Deadline deadline) { return in_flight_.drain(deadline); }

 private:
  Status put(const OneSidedCall& call, const Deadline& deadline);
  Status put_remote(const OneSidedCall& call, const Deadline& deadline);
  Status raise(int from);
  void note_peer(int peer) EXCLUDES(mutex_);
  Result<executor::SignalLine> read(int peer);
  Status wait(const OneSidedCall& call);

  const Options options_;
  gpu::Machine& machine_;
  transport::Signals signals_;
  WorkInFlight in_flight_;
  std::map<int, uint64_t> raised_;  // by origin on another machine; land() only
  std::mutex mutex_;
  std::set<int> peers_ GUARDED_BY(mutex_);  // for which anything may ever have waited
};

}  // namespace niccolite::operations
