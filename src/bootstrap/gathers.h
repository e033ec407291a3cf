// Gathers: the all-gathers of a group, by sequence number. Number 0 carries the table of processes
// and belongs to the session itself; the others belong to the members: a process' part is complete
// when each of its ranks has contributed. The last number of all says that a process has no member
// in the group any more: once it is complete, no message of the group will come.
//
// A process takes part in at most two gathers at a time: no process finishes number s before all
// have begun it, and none goes on after a failed one. Thread safety: the roster's lock is held in
// every call; all_gather() releases it while it waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "bootstrap/gathering.h"
#include "bootstrap/roster.h"

namespace niccolite::bootstrap {

class Gathers {
 public:
  using Transmit = std::function<void(uint32_t process, std::shared_ptr<const Bytes> frame)>;
  using TableComplete = std::function<void(Result<std::vector<messages::ProcessEntry>>)>;

  /// `first`: 0, or 1 where the table is known.
  Gathers(Roster& roster, Transmit transmit, uint64_t first)
      : roster_(roster), transmit_(std::move(transmit)), next_(first) {}

  /// Starts number 0 with this process' entry; `complete` is called once, with the lock held.
  void gather_table(const messages::ProcessEntry& mine, TableComplete complete);

  Result<Gathered> all_gather(Roster::Lock& lock, Local& local, std::span<const std::byte> mine,
                              Deadline deadline);

  /// No rank of this process is in the group any more. Calls `everywhere`, with the lock held, when
  /// this is true of all processes. Until then this process passes on the parts that others gather.
  void say_over(std::function<void()> everywhere);

  /// A Gather or GatherAbsent of another process. A failure means that it broke the protocol.
  Status take(Reader& reader, MessageType type, std::span<const std::byte> frame);
  /// A rank of this process, or all of `neighbor`, contributes no more: parts that depend on it
  /// will not come.
  void local_left();
  void process_departed(uint32_t neighbor);
  /// Ends all gathers, now and later, because a process is lost.
  void fail_all(const Status& why);

 private:
  struct State {
    explicit State(const Roster& roster) : gathering(roster.self(), roster.nprocesses()) {}
    Gathering gathering;
    std::map<int32_t, Bytes> contributions;  // of this process' ranks
    size_t looks = 0;                        // at processes that may be stopped
    std::set<uint32_t> told_stopped;         // processes for which a line has been printed
    bool done = false;
    Gathered result;
    Status failure;
  };

  struct Early {
    uint64_t sequence;
    uint32_t process;
    Gathering::Part part;
  };

  Roster::Outcome wait(Roster::Lock& lock, Local& local, State& state, Deadline deadline);
  void tell_stopped(Roster::Lock& lock, const Local& local, State& state);
  std::shared_ptr<State> state_of(uint64_t sequence);
  void contribute_if_complete(uint64_t sequence, State& state);
  void add(uint64_t sequence, State& state, uint32_t process, Gathering::Part part);
  void add_absent(uint64_t sequence, State& state, uint32_t process, int32_t rank,
                  const std::string& why);
  void mark_what_departed_owe(uint64_t sequence, State& state);
  void mark_owed(uint64_t sequence, State& state, uint32_t neighbor);
  void complete(uint64_t sequence, State& state);
  void complete_table(State& state);
  Status collect(State& state);
  Status describe_missing(const Local& local, const State& state,
                          Deadline::Clock::time_point start) const;

  Roster& roster_;
  Transmit transmit_;
  static constexpr uint64_t kOver = ~uint64_t{0};  // the last number
  TableComplete table_complete_;
  std::function<void()> over_everywhere_;
  std::map<uint64_t, std::shared_ptr<State>> states_;  // under way
  std::vector<Early> early_;  // of number 1, from processes that had the table before us
  uint64_t next_;             // all below are complete
  bool ended_ = false;        // fail_all() was called
  Status failure_;            // of the first that failed: later ones fail alike
};

}  // namespace niccolite::bootstrap
