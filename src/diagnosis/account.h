// Account: a rank's answer to another rank's question for its work: its calls, its wait, and the
// operation of another communicator that holds it up. Times are ages, since ranks do not share a
// clock.
// Thread safety: as for any value.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wire.h"
#include "calls/call_log.h"
#include "executor/report.h"
#include "transport/network_state.h"

namespace niccolite::diagnosis {

/// The last report of a wait that takes long (executor/report.h).
struct WaitReport {
  executor::ReportKind kind = executor::ReportKind::Waiting;
  int peer = -1;  // whose data or credit has not come
  uint16_t tag = 0;
  /// When the wait was last seen to go on: between these times ago.
  std::chrono::milliseconds least_age{0};
  std::chrono::milliseconds most_age{0};
  /// For how long the operation had been under way by then, at least.
  std::chrono::milliseconds lasted{0};
  /// Calls with this tag were launched together with others: which of them waits is not known.
  bool is_joined = false;
};

/// An operation that waits, named in a way that the ranks of all communicators understand.
struct Stuck {
  uint64_t communicator = 0;  // its id, as log lines have it
  int rank = -1;
  uint64_t operation = 0;  // differs from the rank's other ones on that communicator
  calls::Call call;
  int peer = -1;  // the rank that it waits for

  bool is_same_as(const Stuck& other) const {
    return communicator == other.communicator && rank == other.rank && operation == other.operation;
  }
};

/// A call on this communicator that has not begun, because on the one stream of both it follows a
/// waiting operation of another communicator.
struct Hold {
  /// Operations that are followed from one communicator to the next, at most.
  static constexpr size_t kLongest = 64;

  WaitReport wait;  // of the first of:
  /// The waiting operation, and the operations that hold it up: no operation can end before the
  /// next one does. Not empty.
  std::vector<Stuck> chain;
};

/// A call that has not begun, since another thread's call has the communicator. It is not in the
/// log.
struct Blocked {
  std::string function;  // "ncclAllReduce"
  std::string holder;    // the other thread's, where it is one in which ranks wait for each other

  /// "ncclAllReduce, which waits for another thread's ncclCommSplit on this communicator".
  std::string describe() const;
};

struct Account {
  int rank = -1;
  calls::CallLog::Content log;     // sends and receives: with the rank that asks
  std::optional<WaitReport> wait;  // not together with:
  std::optional<Hold> hold;
  bool is_final = false;    // the rank is about to leave: it calls nothing any more
  uint64_t host_calls = 0;  // CallLog::host_calls()
  bool connects = false;    // it makes connections, in a call that is not in the log yet
  /// The launch (LoggedCall::launch) that the rank's stream has come to.
  observe::Recorder::Progress progress{};
  /// How its ways to other machines do; none: it has none.
  std::optional<transport::NetworkState> network{};
  std::optional<Blocked> blocked{};
  /// How long its process has run since it was last held up (stopped, or without a core).
  std::chrono::milliseconds awake{0};

  Bytes encode() const;
  /// `rank` is whom the bytes come from.
  static Result<Account> decode(std::span<const std::byte> bytes, int rank);

  /// The newest call with this tag, if `peer` is not negative one whose other end is there; null:
  /// it is not in the log any more.
  const calls::LoggedCall* find(uint16_t tag, int peer = -1) const;
};

void write(Writer& writer, const calls::LoggedCall& logged);
calls::LoggedCall read_logged_call(Reader& reader);
void write(Writer& writer, const Blocked& blocked);
Blocked read_blocked(Reader& reader);
void write(Writer& writer, const Stuck& stuck);
Stuck read_stuck(Reader& reader);

}  // namespace niccolite::diagnosis
