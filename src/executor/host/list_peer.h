// ListPeer: the connections of one channel of a direct list (list_worker.h) to and from one peer.
//
// Rounds are the steps of the list on both of them. In round 0 the ranks tell each other where
// their buffers are, by LL words; later rounds have the data of buffers that some rank does not
// see. Why it is right: a slot is written between [credit] and its words' flags, and read between
// those and [consume].
//
// With its addresses a rank advertises its buffers (executor/protocol/advertisement.h), by a word
// without an address: who takes that word uses the buffers, and says by the credit of round 0 that
// it is done with them.
//   [advertisement] -> [take]   what the rank's stream has written before is there to be read, and
//                               its outputs are the peer's to store to
//   [consume] -> [credit]       what the peer has stored to outputs is there, and inputs have been
//                               read
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "executor/host/ll_words.h"
#include "executor/host/port.h"
#include "executor/launch.h"

namespace niccolite::executor::host {

class ListPeer {
 public:
  ListPeer(int rank, const PortAddress& send, const PortAddress& receive)
      : rank_(rank), opens_buffers_(send.opens_buffers), send_(send), receive_(receive) {}

  /// Starts an operation on `channel`; before anything else.
  void begin(const FifoShape& shape, uint32_t channel) {
    shape_ = shape;
    begin(send_, channel);
    begin(receive_, channel);
    // [resume] of port.h: the sender may now overwrite slots that earlier operations read.
    set(receive_.peer->remote, receive_.base);
  }
  /// Ends the operation after so many rounds: the next one continues with the step after.
  void end(uint32_t rounds) {
    send_.own->step = send_.base + rounds;
    receive_.own->step = receive_.base + rounds;
  }

  int rank() const { return rank_; }
  /// See PortAddress.
  bool opens_buffers() const { return opens_buffers_; }

  // Slots.

  /// May the slot of the round be written?
  bool has_credit(uint32_t round) const {
    // [credit] of the slot's use `depth` steps before.
    return is_before(send_.base + round, get(send_.own->remote) + shape_.depth);
  }
  /// Data bytes from `offset`, a multiple of 4, on.
  void store(uint32_t round, uint64_t offset, uint64_t bytes, uint16_t tag, const std::byte* data) {
    ll_pack(slot(send_, round), offset, bytes, flag(send_, round, tag), data);
  }
  /// After all stores of the round, of so many bytes.
  void clean(uint32_t round, uint64_t bytes, uint16_t tag) {
    if (ll::cleans(send_.base + round, shape_.depth))
      ll_clean(slot(send_, round), bytes, shape_.slot_bytes, flag(send_, round, tag));
  }
  /// Loads data bytes from `offset`, a multiple of 4, on; bytes that have not arrived are
  /// undefined.
  Arrival load(uint32_t round, uint64_t offset, uint64_t bytes, uint16_t tag,
               std::byte* data) const {
    const uint32_t expected = flag(receive_, round, tag);
    const std::byte* const from = slot(receive_, round);
    if (ll_unpack(from, offset, bytes, expected, data)) return {Arrived::Yes};
    const uint32_t found = ll_flag(from, offset);
    return ll::is_mismatch(found, expected) ? Arrival{Arrived::Foreign, ll::tag_in(found)}
                                            : Arrival{Arrived::No};
  }
  /// The slot of the round has been read; not of round 0: see let_go().
  void give_credit(uint32_t round) { set(receive_.peer->remote, receive_.base + round + 1); }

  // Advertisements.

  void advertise(uint16_t tag) {
    has_advertised_ = true;
    set(send_.peer->advertisement, advertisement::of(/*address=*/0, tag));
  }
  Arrival take(uint16_t tag) {
    if (has_taken_) return {Arrived::Yes};
    if (foreign_tag_) return {Arrived::Foreign, *foreign_tag_};
    const uint64_t word = take(receive_.own->advertisement);
    if (word == advertisement::kNone) return {Arrived::No};
    has_taken_ = advertisement::tag_in(word) == tag;
    if (!has_taken_) foreign_tag_ = advertisement::tag_in(word);
    return has_taken_ ? Arrival{Arrived::Yes} : Arrival{Arrived::Foreign, *foreign_tag_};
  }
  /// This rank is done with the peer's buffers, and has read its addresses.
  void let_go() { give_credit(0); }
  /// Is the peer done with this rank's buffers?
  bool is_let_go() const { return is_before(send_.base, get(send_.own->remote)); }

  /// The operation goes no further: as PortState's functions of these names.
  void leave_as_taker() {
    if (has_taken_) set(receive_.peer->detached, receive_.base + 1);
  }
  bool leave_as_maker() {
    if (!has_advertised_ || is_withdrawn_) return true;
    if (!has_tried_to_withdraw_) {
      has_tried_to_withdraw_ = true;
      is_withdrawn_ = take(send_.peer->advertisement) != advertisement::kNone;
    }
    return is_withdrawn_ || is_let_go() || get(send_.own->detached) == send_.base + 1;
  }

 private:
  struct End {
    explicit End(const PortAddress& of) : address(of) {}
    PortAddress address;
    ControlBlock* own = nullptr;
    ControlBlock* peer = nullptr;
    std::byte* slots = nullptr;
    uint64_t base = 0;  // the step of round 0
  };

  void begin(End& end, uint32_t channel) const {
    end.own = end.address.control + channel;
    end.peer = end.address.remote_control + channel;
    end.slots = end.address.slots + shape_.slot_offset(channel, 0);
    end.base = end.own->step;  // this end's alone: ordered by the stream
  }
  std::byte* slot(const End& end, uint32_t round) const {
    return end.slots + ((end.base + round) & (shape_.depth - 1)) * shape_.slot_bytes;
  }
  static uint32_t flag(const End& end, uint32_t round, uint16_t tag) {
    return ll::flag_of(end.base + round, tag);
  }
  // [credit] and [detached] acquire, [consume], [resume] and [advertisement] release. [take] and
  // the withdrawal acquire; one of them gets the word.
  static uint64_t get(uint64_t& word) {
    return std::atomic_ref(word).load(std::memory_order_acquire);
  }
  static void set(uint64_t& word, uint64_t value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
  }
  static uint64_t take(uint64_t& word) {
    return std::atomic_ref(word).exchange(advertisement::kNone, std::memory_order_acquire);
  }
  // Compares by difference, as for all counters.
  static bool is_before(uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b) < 0; }

  int rank_;
  bool opens_buffers_;
  FifoShape shape_;
  End send_;
  End receive_;
  bool has_advertised_ = false;
  bool has_tried_to_withdraw_ = false;
  bool is_withdrawn_ = false;
  bool has_taken_ = false;
  std::optional<uint16_t> foreign_tag_;
};

}  // namespace niccolite::executor::host
