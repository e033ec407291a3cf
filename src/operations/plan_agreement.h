// PlanAgreement: from which collective on all ranks plan for buffers that all of them reach
// (planner::Settings::reaches_users). All ranks must carry out a collective by one plan. But
// between processes the buffers of live calls come to be reached one after the other
// (registry/buffer_exports.h), and each rank knows of its own alone. A program may use some
// buffers again and again for one operation, and new ones for another: so ranks wish for each kind
// of operation by itself, and rank 0 proposes the number of a collective that none has come to:
//
//   rank r                     rank 0                        all ranks
//   its buffers are reached
//     --------- Wish ------->  all wish it of a kind
//                                ------- Proposal -------->  collectives from `from` on wait, or,
//                                                            where it comes too late, all that have
//                                                            not begun
//                                <------- Answer ----------  the first that waits
//                              the last of these
//                                ------- Decision -------->  from that collective on
//
// So each proposal is decided on, however late the messages come, and ranks wait only where one is
// on its way for longer than some dozens of collectives take.
//
// Either plan is right for all buffers, and only slower where it does not suit them. The agreement
// makes the ranks choose the same plan, and a wish costs nobody a wait. Messages belong to two
// ranks and are not numbered here (MessageAgreement does so); captured calls are captured on all
// ranks, and need no agreement.
//
// Thread safety: begin(), launched(), agreed() and note_use() by one thread at a time; note() by
// any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "base/wire.h"
#include "operations/reach_history.h"

namespace niccolite::operations {

class PlanAgreement {
 public:
  /// Queues a message for a peer's note(). Messages of one pair may overtake each other.
  using Tell = std::function<void(int peer, std::span<const std::byte> message)>;
  /// `abort` outlives the agreement, and ends waits. `reached`: buffers are assumed to be reached
  /// until one is found not to be, as between ranks of one process; else the other way.
  PlanAgreement(int rank, int nranks, bool reached, const Abort& abort, Tell tell);

  /// Kinds of operations, a bit each: a collective, or the collectives of a group.
  using Kinds = uint32_t;
  static constexpr unsigned kKinds = 32;
  /// The kind of an operation with this fingerprint (tag_of(const Call&)), which all ranks have
  /// alike. Operations that differ may be of one kind.
  static constexpr Kinds kind_of(uint16_t tag) { return Kinds{1} << tag % kKinds; }

  /// Prepares the planning of `collectives` live collectives that start together. Returns the kinds
  /// that are planned for buffers that all ranks reach, equal on all ranks. Waits if a decision on
  /// them is open. Without launched(), the next call is about the same collectives. Errors: the
  /// abort's reason.
  Result<Kinds> begin(size_t collectives) EXCLUDES(mutex_);
  /// They have been launched.
  void launched() { launched_ = begun_; }
  /// The kinds that the last begin() has returned: it waits for nothing.
  Kinds agreed() const { return for_reach_; }

  /// Wishes that these kinds, and no others, be planned so. Not with note_use().
  void wish(Kinds kinds) EXCLUDES(mutex_);
  /// Notes a launch of an operation of this kind, whose buffers are advertised to peers.
  void note_use(Kinds kind, const ReachHistory::Use& use) EXCLUDES(mutex_);

  /// Takes a message of rank `from`. Errors: RemoteError when `from` may not send it.
  Status note(int from, std::span<const std::byte> message) EXCLUDES(mutex_);

 private:
  enum class Kind : uint8_t { Wish, Proposal, Answer, Decision };
  struct Message {
    Kind kind = Kind::Wish;
    Kinds kinds = 0;          // Wish, Proposal: those for reach
    uint64_t number = 0;      // of the proposal; of a rank's wishes
    uint64_t collective = 0;  // Proposal, Decision: the first it is for. Answer: that waits

    Bytes encode() const;
    static Result<Message> decode(std::span<const std::byte> bytes, int from);
  };
  using Outbox = std::vector<std::pair<int, Message>>;

  /// A change that is proposed, or was decided and is still to come.
  struct Change {
    uint64_t proposal = 0;
    uint64_t from = 0;
    Kinds for_reach = 0;
    bool is_decided = false;
  };

  /// Rank 0's part.
  struct Proposed {
    uint64_t number = 0;
    Kinds for_reach = 0;
    std::vector<bool> answered;  // by rank
    int answers_missing = 0;
  };
  struct Wish {
    Kinds for_reach = 0;
    uint64_t number = 0;
  };
  struct Leader {
    std::vector<Wish> wishes;  // by rank
    Kinds decided = 0;         // the last decision: for reach
    std::optional<Proposed> proposed;
    uint64_t proposals = 0;
    uint64_t last_change = 0;  // the first collective that the last proposal is for
  };

  Result<Kinds> pass_changes(uint64_t first) EXCLUDES(mutex_);
  void tell_of(const Change& change) const;
  void publish_next_change() REQUIRES(mutex_);
  Status take(int from, const Message& message, Outbox& outbox) REQUIRES(mutex_);
  void take_wish(int from, const Message& message, Outbox& outbox) REQUIRES(mutex_);
  void take_proposal(const Message& message, Outbox& outbox) REQUIRES(mutex_);
  Status take_decision(const Message& message) REQUIRES(mutex_);
  Status take_answer(int from, const Message& message, Outbox& outbox) REQUIRES(mutex_);
  void propose(Outbox& outbox) REQUIRES(mutex_);
  void tell_all(const Message& message, Outbox& outbox) const;
  void deliver(const Outbox& outbox) EXCLUDES(mutex_);

  const int rank_;
  const int nranks_;
  const Abort& abort_;
  const Tell tell_;

  // Used by the calling thread only.
  uint64_t launched_ = 0;
  uint64_t begun_ = 0;
  Kinds for_reach_;  // of the collectives that come now
  Wish wish_;
  std::vector<ReachHistory> histories_;  // by kind

  // [seq_cst] both: begin() stores begun and loads the change, note() stores the change and loads
  // begun; one of them sees the other's.
  std::atomic<uint64_t> begun_seen_{0};
  std::atomic<uint64_t> next_change_;

  std::mutex mutex_;
  std::condition_variable decided_;
  std::deque<Change> changes_
      GUARDED_BY(mutex_);  // by `from`, ascending; the last may be undecided
  Leader leader_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::operations
