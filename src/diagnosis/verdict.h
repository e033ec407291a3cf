// Verdict: why an operation stands still, in a form that travels: the rank that finds it tells all
// others, so that the log of every rank has the same sentence (docs/design/failures.md). A
// verdict describes the present, not the future: a late rank may still come. Thread safety: as for
// any value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "diagnosis/account.h"

namespace niccolite::diagnosis {

enum class Cause : uint8_t {
  NotCalled,      // the rank has not made the call
  NotBegun,       // it has, and its GPU has not come to it
  Late,           // one of both, and which of them is not known: graphs, or many equal calls
  HeldUp,         // as NotBegun: its stream waits in an operation of another communicator
  Stopped,        // its process does not run: SIGSTOP, a debugger
  DoesNotAnswer,  // its process hangs, or its machine or the network is gone
  Link,           // nothing that it sends to one rank of another machine is acknowledged
  Proxy,          // its thread that carries data to other machines does not come round
  Blocked,        // as NotCalled: a call of it waits for another thread's call
  CutOff          // it hears nothing from any other machine
};

/// True for a fault; false if the rank may merely be late.
bool is_fault(Cause cause);

struct Verdict {
  Cause cause = Cause::NotCalled;
  int rank = -1;                // the culprit
  int waiting = -1;             // the rank that waits for it
  calls::LoggedCall operation;  // that stands still, as `waiting` called it
  std::optional<calls::LoggedCall>
      last;  // that the culprit called; of Stopped and DoesNotAnswer not known
  /// "ncclCommSplit": the host call that stands still. Then only the number of `operation` counts.
  std::string host_call{};
  std::optional<Stuck> holder;                    // HeldUp: the operation that its stream waits in
  std::optional<transport::Traffic> link{};       // Link: with link->peer, as the culprit has it
  std::optional<transport::ProxyThread> proxy{};  // Proxy: the thread
  std::optional<diagnosis::Blocked> blocked{};    // Blocked: the call

  /// Are both of one operation?
  bool is_of_same_operation_as(const Verdict& other) const;
  /// True if both name one cause of one operation. For collectives the waiting rank does not
  /// matter.
  bool is_same_as(const Verdict& other) const;
  /// Names communicator, operation, rank and process, the rank's last call, and a remedy. `process`
  /// is the culprit's, as in "process 4711 on host a12".
  std::string describe(uint64_t communicator, const std::string& process) const;

  /// `culprit` has not made the call: names its blocked call, if there is one.
  void say_blocked(const Account& culprit);

  Bytes encode() const;
  /// Decodes a verdict on a communicator of `nranks` ranks.
  static Result<Verdict> decode(std::span<const std::byte> bytes, int nranks);
};

/// `late` waits for nothing, and `waiting`, which has a wait, waits for it. Nothing when the log of
/// `waiting` does not tell in which call.
std::optional<Verdict> judge_late(const Account& waiting, const Account& late);
/// `waiting`, which has a wait, waits for `awaited`. Returns a verdict if the proxy of one of them,
/// or the link, is the cause. A link on which bytes still come is slow, and no fault.
std::optional<Verdict> judge_network(const Account& waiting, const Account& awaited);
/// Judges like judge_late(), for a rank that gives no account for the reason `cause`.
std::optional<Verdict> judge_silent(const Account& waiting, int rank, Cause cause);

}  // namespace niccolite::diagnosis
