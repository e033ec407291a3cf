// Survivors: how some ranks of a group agree to go on without the others, whatever has become of
// the others. Each names the ranks to leave out. The parts travel as in an all-gather, but only
// among the processes of the remaining ranks, down trees of their own, whether the group's gathers
// still work or not. Nobody has the result before everybody has contributed, with the same list.
//
// An attempt is named by its list and its number among the attempts with this list. A failure of an
// attempt (another list, a process that ends, a rank that gives up) is told to all processes, also
// to processes that have not begun it, so that every rank that calls hears of it, once.
//
// Parts with another list are a contradiction, with two exceptions: a rank of that list has gone
// (the parts belong to an attempt that has failed, or will), or their sender is one agreement ahead
// (the parts belong to the next). Since a rank may know of an end before another does, a
// contradiction is given a second to resolve itself. Thread safety: the roster's lock is held in
// every call; agree() releases it while it waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "bootstrap/gathering.h"
#include "bootstrap/roster.h"

namespace niccolite::bootstrap {

class Survivors {
 public:
  using Transmit = std::function<void(uint32_t process, std::shared_ptr<const Bytes> frame)>;
  using Probe = std::function<void(uint32_t process)>;
  using Excluded = std::vector<int32_t>;  // ascending

  Survivors(Roster& roster, Transmit transmit, Probe probe)
      : roster_(roster), transmit_(std::move(transmit)), probe_(std::move(probe)) {}

  /// `rank`, of this process, begins an attempt: its number, for agree().
  Result<uint32_t> begin(int32_t rank, const Excluded& excluded);
  /// Returns the contributions of the surviving ranks, in their order. Waits as `waiter`, a rank of
  /// this process in any group.
  Result<Gathered> agree(Roster::Lock& lock, const std::shared_ptr<Local>& waiter, int32_t rank,
                         const Excluded& excluded, uint32_t number, std::span<const std::byte> mine,
                         Deadline deadline);

  /// A Survive of another process. A failure means that it broke the protocol.
  Status take(Reader& reader, std::span<const std::byte> frame);
  /// A process has ended, or a rank of any process has left. Attempts that need it fail.
  void process_gone(uint32_t process);
  void rank_left(int32_t rank);

 private:
  struct Attempt {
    Attempt(uint32_t number_, uint32_t epoch_, uint32_t self, std::vector<uint32_t> processes_);
    const uint32_t number;
    const uint32_t epoch;
    const std::vector<uint32_t> processes;  // of the surviving ranks, ascending
    Gathering gathering;                    // by position in `processes`
    std::map<int32_t, Bytes> contributions;
    Gathered collected;        // the result for all ranks of this process, once it is complete
    std::set<int32_t> called;  // ranks of this process that know of it
    std::vector<std::shared_ptr<Local>> waiters;
    Status contradiction;  // with another list
    Status failure;
    bool is_over() const { return !failure.is_ok() || gathering.complete(); }
    bool includes(uint32_t process) const;
  };

  /// `tells`: others, should it fail at once because a rank that stays is gone.
  void start(const Excluded& excluded, uint32_t number, uint32_t epoch, bool tells);
  void contribute_if_complete(const Excluded& excluded, Attempt& attempt);
  void add(Attempt& attempt, uint32_t process, Gathering::Part part);
  void fail(Attempt& attempt, const Status& why);
  void fail_and_tell(const Excluded& excluded, Attempt& attempt, const Status& why);
  /// Marks `excluded` and every other list that is under way as contradictions.
  void compare(const Excluded& excluded);
  void fail_contradictions();
  bool stays(const Excluded& excluded, int32_t rank) const;
  Result<Gathered> collect(const Excluded& excluded, const Attempt& attempt) const;
  Status describe_missing(const Attempt& attempt, const Excluded& excluded,
                          Deadline::Clock::time_point start) const;

  Roster& roster_;
  Transmit transmit_;
  Probe probe_;
  std::map<Excluded, std::shared_ptr<Attempt>> attempts_;  // the last of each list
  uint32_t epoch_ = 0;
};

}  // namespace niccolite::bootstrap
