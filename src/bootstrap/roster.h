// Roster: one process's knowledge of a group: the process of each rank and whether it is alive, and
// the ranks that live in this process (Local), on which member threads wait. The session's mutex
// guards it, and with it the state of the gathers and the mailroom. The mutex is held for table
// look-ups and moves only, never over a wait, a callback or a system call that blocks. Thread
// safety: as each function says.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "bootstrap/member.h"
#include "bootstrap/messages.h"

namespace niccolite::bootstrap {

/// A request that waits for its handler.
struct Call {
  int32_t from = 0;
  uint32_t process = 0;  // where the answer goes
  uint64_t number = 0;
  Bytes content;
};

/// One rank that lives in this process. All but the constants is guarded by the roster's mutex.
struct Local {
  Local(int rank_, int nranks_, Abort* abort_) : rank(rank_), nranks(nranks_), abort(abort_) {}

  const int rank;
  const int nranks;
  Abort* const abort;
  int abort_listener = -1;
  Status refusal;                   // why it does not join, which it tells all; ok: it joins
  std::condition_variable changed;  // anything that a wait of this rank may wait for
  bool aborted = false;
  bool left = false;

  uint64_t gathers = 0;                                             // calls of all_gather() so far
  std::string gathers_for;                                          // see Member::explain_waits()
  Status gather_failure;                                            // of the first that failed
  std::map<std::pair<int32_t, uint32_t>, std::deque<Bytes>> inbox;  // by sender and tag
  Member::Handler handler;
  std::deque<Call> calls;
  int in_service = 0;  // handlers and callbacks under way
  std::function<void(int, const Status&)> peer_lost;
  std::set<int32_t> told_lost;
};

/// Describes the end of a link: "rank 1 (...) ended unexpectedly: connection closed", and where to
/// look, or that the rank is not reached any more.
std::string describe_loss(std::string_view who, std::string_view why);

class Roster {
 public:
  using Lock = std::unique_lock<std::mutex>;
  enum class Outcome { Happened, TimedOut, Aborted };

  /// `mutex` is the session's, and outlives the roster.
  explicit Roster(std::mutex& mutex) : mutex_(mutex) {}

  Lock lock() { return Lock(mutex_); }

  // All below: the lock is held.

  void set_place(uint32_t self, uint32_t nprocesses, int32_t nranks);
  /// The table of all processes; rejects one in which a rank is missing or appears twice.
  Status set_table(std::vector<messages::ProcessEntry> table);

  uint32_t self() const { return self_; }
  uint32_t nprocesses() const { return nprocesses_; }
  int32_t nranks() const { return nranks_; }
  bool has_table() const { return !table_.empty(); }
  uint32_t process_of(int32_t rank) const { return process_of_[static_cast<size_t>(rank)]; }
  const messages::ProcessEntry& process(uint32_t process) const { return table_[process]; }

  void add(std::shared_ptr<Local> local) { locals_.push_back(std::move(local)); }
  void remove(const Local& local);
  const std::vector<std::shared_ptr<Local>>& locals() const { return locals_; }
  /// The local with `rank` that has not left; null: none.
  std::shared_ptr<Local> find(int32_t rank) const;
  void wake_all();

  /// "rank 3 (process 4711 on host a12)"; needs the table.
  std::string describe(uint32_t process) const;
  /// Why `rank` cannot take part any more; fine while it can.
  Status why_gone(int32_t rank) const;
  bool is_gone(uint32_t process) const { return states_[process].state != State::Alive; }
  /// It is gone, and why is known: a process that said goodbye to us may have ended badly for
  /// others, and the first word stays. Not of one that this process merely found gone: who saw it
  /// end tells more.
  bool is_end_explained(uint32_t process) const {
    const ProcessState& known = states_[process];
    return known.state == State::Lost || (known.state == State::Departed && known.why.is_ok());
  }
  /// Has `rank` ended in an orderly way, by itself or with its process?
  bool has_left(int32_t rank) const;
  void mark_left(int32_t rank);
  void mark_departed(uint32_t process, Status why);
  void mark_lost(uint32_t process, Status why);
  /// How a process ended, and why if that is known.
  struct End {
    bool is_lost = false;
    Status why;
  };
  /// Nothing while it is alive.
  std::optional<End> end_of(uint32_t process) const;
  /// Returns lost processes with reasons, for callbacks that are registered late.
  std::vector<std::pair<uint32_t, Status>> lost() const;

  /// Whether the local's abort ends a wait.
  enum class AtAbort : uint8_t { Ends, GoesOn };
  /// Releases the lock until `happened`, the deadline, or the local's abort or leave().
  template <typename Condition>
  Outcome wait(Lock& lock, Local& local, Deadline deadline, Condition happened,
               AtAbort at_abort = AtAbort::Ends) {
    while (true) {
      if (happened()) return Outcome::Happened;
      if (local.left || (local.aborted && at_abort == AtAbort::Ends)) return Outcome::Aborted;
      if (deadline.passed()) return Outcome::TimedOut;
      if (deadline.at() == Deadline::Clock::time_point::max()) {
        local.changed.wait(lock);
      } else {
        local.changed.wait_until(lock, deadline.at());
      }
    }
  }
  /// The failure of a wait that was Aborted.
  static Status why_aborted(const Local& local);

 private:
  enum class State { Alive, Departed, Lost };
  struct ProcessState {
    State state = State::Alive;
    Status why;
  };

  std::mutex& mutex_;
  uint32_t self_ = 0;
  uint32_t nprocesses_ = 0;
  int32_t nranks_ = 0;
  std::vector<messages::ProcessEntry> table_;
  std::vector<uint32_t> process_of_;  // by rank
  std::vector<bool> left_;            // by rank
  std::vector<ProcessState> states_;  // by process
  std::vector<std::shared_ptr<Local>> locals_;
};

}  // namespace niccolite::bootstrap
