// PortState: one end of one connection on one channel while an operation runs: the counters of
// executor/protocol/fifo.h, and copies of them. The rules of the FIFO live here; what is in the
// slots does not.
//
// Why it is right. A slot is written between [credit] and [publish], and read between [arrival] and
// [consume].
//   [publish] -> [arrival]: the sender's release of the tail, acquired by the receiver: what was
//   written before is read. [consume] -> [credit]:  the receiver's release of the head, acquired by
//   the sender: what was read has been read before
//                           it is overwritten. [resume] is the late [consume] of the operation
//                           before.
// (LL and LL128 have no tail: words and lines bring their own flags. The head is the same.) Each
// counter has one writer, and only grows. Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "executor/protocol/fifo.h"
#include "executor/protocol/tag.h"

namespace niccolite::executor::host {

/// What a receiver finds when it looks for the data of its step. Foreign: data of that step, but of
/// another call.
enum class Arrived : uint8_t { No, Yes, Foreign };
struct Arrival {
  Arrived state;
  uint16_t tag = 0;  // Foreign: that of the other call
};

class PortState {
 public:
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free,
                "counters are shared with other processes");

  /// Starts an operation of `steps` steps, of the call of `tag`, on `channel` of the connection
  /// whose end is `address`.
  void begin(const PortAddress& address, const FifoShape& shape, uint32_t channel, bool is_send,
             uint64_t steps, uint16_t tag) {
    own_ = address.control + channel;
    peer_ = address.remote_control + channel;
    slots_ = address.slots + shape.slot_offset(channel, 0);
    depth_ = shape.depth;
    slot_bytes_ = shape.slot_bytes;
    step_ = own_->step;  // this end's alone: ordered by the stream between operations
    // Before this is acquired once, nothing may be concluded from it: no step has arrived, no slot
    // is free.
    remote_ = is_send ? step_ - depth_ : step_;
    end_ = step_ + steps;
    tag_ = tag;
    foreign_tag_.reset();
    if (!is_send) {
      // [resume] the sender may now overwrite what earlier operations read. Pairs with [credit].
      std::atomic_ref(peer_->remote).store(step_, std::memory_order_release);
    }
  }

  /// Ends the operation: the next one continues with the step after.
  void end() { own_->step = step_; }

  uint64_t step() const { return step_; }
  uint16_t tag() const { return tag_; }
  /// The slot of the present step.
  std::byte* slot() const { return slots_ + (step_ & (depth_ - 1)) * slot_bytes_; }

  /// Sender: may the slot be written?
  bool has_credit() {
    if (is_before(step_, remote_ + depth_)) return true;
    // [credit] the receiver has read this slot's last content. Pairs with [consume] and [resume].
    remote_ = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    return is_before(step_, remote_ + depth_);
  }
  /// Receiver, Simple: has the slot been published, and by the same call?
  Arrival arrival() {
    if (is_before(step_, remote_)) return {Arrived::Yes};
    // Once seen it stays: the sender may go on to where its tags are not judged.
    if (foreign_tag_) return {Arrived::Foreign, *foreign_tag_};
    // [arrival] the slot's content is there to be read. Pairs with [publish].
    const uint64_t tail = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    const uint64_t produced = tag::steps_in(tail, step_);
    if (!is_before(step_, produced)) return {Arrived::No};
    // A tail beyond this operation has the tag of the sender's next.
    if (!is_before(end_, produced) && tag::tag_in(tail) != tag_) {
      foreign_tag_ = tag::tag_in(tail);
      return {Arrived::Foreign, *foreign_tag_};
    }
    remote_ = produced;
    return {Arrived::Yes};
  }

  /// Sender: the slot is written; on to the next step.
  void sent(Protocol protocol) {
    ++step_;
    if (protocol != Protocol::Simple) return;
    // [publish] the slot's content, to the receiver's [arrival].
    std::atomic_ref(peer_->remote).store(tag::tail(step_, tag_), std::memory_order_release);
  }
  /// Receiver: the slot has been read; on to the next step.
  void received() {
    ++step_;
    // The sender cannot need the credit of the last `depth` steps in this operation; [resume] of
    // the next will give it.
    if (is_before(end_ - depth_, step_)) return;
    // [consume] the slot has been read; the sender may overwrite it after its [credit].
    std::atomic_ref(peer_->remote).store(step_, std::memory_order_release);
  }

 private:
  // By difference, as all counters are compared.
  static bool is_before(uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b) < 0; }

  ControlBlock* own_ = nullptr;
  ControlBlock* peer_ = nullptr;
  std::byte* slots_ = nullptr;  // of this channel
  uint64_t step_ = 0;           // next step
  uint64_t remote_ = 0;         // the other end's counter when last looked at
  uint64_t end_ = 0;            // the step after the operation's last
  uint32_t depth_ = 0;
  uint32_t slot_bytes_ = 0;
  uint16_t tag_ = 0;
  std::optional<uint16_t> foreign_tag_;
};

}  // namespace niccolite::executor::host
