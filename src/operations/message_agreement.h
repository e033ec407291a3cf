// MessageAgreement: which live messages between processes are planned for the receiver's own buffer
// (Call::goes_direct). Both ends of a message must carry it out by one plan. But only the receiver
// knows whether the sender reaches its buffers (registry/buffer_exports.h), and the ends know
// nothing of each other's groups. So the messages of a pair are numbered in each direction, as both
// ends count them, and the receiver proposes the number of one that it has not come to:
//
//   receiver                                     sender
//   its last buffers were reached
//   messages from `from` on wait
//                     ------- Proposal -------->  from then on, or, where it has begun that one,
//                                                 from the first on that it has not begun
//   from there on     <------- Answer ----------
//
// The sender never waits. The receiver does where an answer is on its way for longer than some
// dozens of messages take. News that come late only make the change come later: until then messages
// are planned for slots, which are right for all buffers. The same way leads back.
//
// The price then decides the plan of a message (Planner::protocol_of_message()): for short messages
// both answers give the same plan. Captured messages are captured at both ends, and need no
// agreement. They are not counted.
//
// Thread safety: begin(), launched() and note_use() by one thread at a time; note() by any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "base/wire.h"
#include "calls/task.h"
#include "operations/reach_history.h"

namespace niccolite::operations {

class MessageAgreement {
 public:
  /// How the messages of one direction between this rank and a peer go, as both ends know it.
  enum class Kind : uint8_t {
    Slots,   // planned for slots for ever
    Agreed,  // as the ends agree
    Direct   // the sender reaches all buffers: one process
  };
  /// The kinds, by peer; kinds to and from the own rank may be any.
  struct Kinds {
    std::vector<Kind> sent;
    std::vector<Kind> received;
  };
  /// Queues a message for a peer's note().
  using Tell = std::function<void(int peer, std::span<const std::byte> message)>;
  /// `abort` outlives the agreement, and ends waits.
  MessageAgreement(int rank, const Kinds& kinds, const Abort& abort, Tell tell);

  /// Prepares the planning of live calls that start together: sets Call::goes_direct of the
  /// messages among them. Waits if a decision on one of them is open. Without launched(), the next
  /// call is about the same messages. Errors: the abort's reason.
  Status begin(std::span<calls::Task> tasks);
  /// They have been launched.
  void launched();

  /// Does note_use() want to know of messages from this rank?
  bool notes_use_of(int sender) const {
    return stream(sender, /*is_send=*/false).kind == Kind::Agreed;
  }
  /// Notes the buffer of one message of `sender` that may go direct.
  void note_use(int sender, const ReachHistory::Use& use);

  /// Takes a message of `peer`. Errors: RemoteError when `peer` may not send it.
  Status note(int peer, std::span<const std::byte> message);

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Message {
    bool is_answer = false;
    bool goes_direct = false;  // Proposal
    uint64_t proposal = 0;     // its number
    uint64_t from = 0;         // the first message that it is for

    Bytes encode() const;
    static Result<Message> decode(std::span<const std::byte> bytes, int peer);
  };

  /// A change that is proposed, or was agreed on and is still to come.
  struct Change {
    uint64_t from = 0;
    bool goes_direct = false;
    bool is_agreed = false;
  };

  /// The messages of a pair in one direction.
  struct Stream {
    Kind kind = Kind::Slots;
    int peer = 0;
    bool is_send = false;

    // Used by the calling thread only.
    uint64_t launched = 0;
    uint64_t begun = 0;
    uint64_t next = 0;         // number of the first message that begin() looks at
    bool goes_direct = false;  // the messages that come now
    bool changes_now = false;  // or some of them
    bool is_begun = false;     // in begun_
    ReachHistory history;      // kept by a receiver
    bool proposed = false;     // the last proposal's goes_direct

    // [seq_cst] both: begin() stores begun and loads the change, note() stores the change and loads
    // begun; one of them sees the other's.
    std::atomic<uint64_t> begun_seen{0};
    std::atomic<uint64_t> next_change{kNever};

    std::mutex mutex;
    std::condition_variable agreed;
    std::deque<Change> changes GUARDED_BY(mutex);  // by `from`, ascending; the last may be proposed
    uint64_t proposals GUARDED_BY(mutex) = 0;
    uint64_t last_from GUARDED_BY(mutex) = 0;  // of all changes so far
    bool awaits_answer GUARDED_BY(mutex) = false;
  };

  const Stream& stream(int peer, bool is_send) const {
    return streams_[2 * static_cast<size_t>(peer) + (is_send ? 1 : 0)];
  }
  Stream& stream(int peer, bool is_send) {
    return streams_[2 * static_cast<size_t>(peer) + (is_send ? 1 : 0)];
  }
  Status pass_changes(Stream& of) const;
  static bool goes_direct(Stream& of, uint64_t number);
  static void publish_next_change(Stream& of) REQUIRES(of.mutex);
  Result<Message> take_proposal(Stream& of, const Message& message) const;
  Status take_answer(Stream& of, const Message& message) const;

  const int rank_;
  const Abort& abort_;
  const Tell tell_;
  std::vector<Stream> streams_;   // by peer: a stream of sends, one of receives
  std::vector<Stream*> begun_{};  // by begin()
};

}  // namespace niccolite::operations
