// PortState: one end of one connection on one channel while an operation runs: the counters of
// executor/protocol/fifo.h, and copies of them. The rules of the FIFO live here; the contents of
// the slots do not.
//
// Why it is right. A slot is written between [credit] and [publish], and read between [arrival] and
// [consume].
//   [publish] -> [arrival]   the sender's release of the tail, acquired by the receiver: data is
//                            written before it is read.
//   [consume] -> [credit]    the receiver's release of the head, acquired by the sender: data has
//                            been read before it is overwritten. [resume] is the late [consume] of
//                            the operation before.
// These orders hold also for advertised memory (executor/protocol/advertisement.h): direct puts lie
// between [take] and [publish], reads of exposed data between [take] and [consume]. (LL and LL128
// have no tail: words and lines bring their own flags. The head is the same.) Each counter has one
// writer, and only grows. Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "executor/launch.h"
#include "executor/protocol/advertisement.h"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/fifo.h"
#include "executor/protocol/ll.h"
#include "executor/protocol/pull.h"
#include "executor/protocol/relay.h"
#include "executor/protocol/user_memory.h"

namespace niccolite::executor::host {

/// The state of the receiver's step. Foreign: there are data of that step, but of another call.
enum class Arrived : uint8_t { No, Yes, Foreign };
struct Arrival {
  Arrived state;
  uint16_t tag = 0;  // Foreign: tag of the other call
};

/// The part of an operation in advertisements at one end of a connection.
enum class AdvertisementRole : uint8_t { None, Makes, Takes };

class PortState {
 public:
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free,
                "counters are shared with other processes");

  /// Starts an operation of `steps` steps, of the call of `tag`, on `channel` of the connection
  /// whose end is `address`. Before any port of the launch takes a step.
  void begin(const PortAddress& address, const FifoShape& shape, uint32_t channel, bool is_send,
             uint64_t steps, uint16_t tag, const Turn& turn) {
    own_ = address.control + channel;
    peer_ = address.remote_control + channel;
    slots_ = address.slots + shape.slot_offset(channel, 0);
    depth_ = shape.depth;
    slot_bytes_ = shape.slot_bytes;
    const uint64_t first = own_->step;  // this end's alone: ordered by the stream
    step_ = first + turn.first_step;
    is_followed_ = turn.is_followed;
    // Before this is acquired once, nothing may be concluded from it: no step has arrived, no slot
    // is free.
    remote_ = is_send ? step_ - depth_ : step_;
    end_ = step_ + steps;
    tag_ = tag;
    foreign_tag_.reset();
    team_ = nullptr;
    deliveries_ = 0;
    bell_ = address.bells[channel % kMostProxies];
    elements_ = address.elements;
    notes_ = address.notes == nullptr ? nullptr : address.notes + size_t{channel} * depth_;
    channels_ = shape.channels;
    user_memory_ = address.user_memory;
    channel_ = channel;
    places_ = user_memory_ == nullptr ? nullptr : user_memory_->places() + size_t{channel} * depth_;
    in_user_memory_until_ = remote_;
    base_ = placed_ = step_;
    // relay.h. Works that take turns read their slots in any order.
    credited_ = bell_ != nullptr && !turn.is_one_of_several() ? end_ : end_ - depth_;
    if (!is_send) {
      std::atomic_ref head(peer_->remote);
      // relaxed: this end's own.
      const bool is_late = head.load(std::memory_order_relaxed) != first;
      // [resume] the sender may now overwrite slots that earlier operations read. Pairs with
      // [credit].
      head.store(first, std::memory_order_release);
      if (is_late && bell_ != nullptr) bell_->announce();
    }
  }

  /// After begin(), when this end stores to the slots of a team, or loads from them: the address of
  /// the first one of this channel.
  void go_by_team(const std::byte* slots) { team_ = slots; }
  bool goes_by_team() const { return team_ != nullptr; }
  /// Returns the address of all members' slots of the present step. slot() is this rank's own.
  const std::byte* team_slot() const { return team_ + (step_ & (depth_ - 1)) * slot_bytes_; }

  /// After begin(), when the connection is of direct puts or gets: see advertisement.h. `by_team`:
  /// who takes may refuse.
  void begin_advertisement(AdvertisementRole role, bool is_direct_get, bool by_team) {
    role_ = role;
    is_pending_ = true;
    is_direct_get_ = is_direct_get;
    awaits_answer_ = by_team && role == AdvertisementRole::Makes;
    if (is_direct_get) credited_ = end_;
  }
  bool makes_advertisement() const { return role_ == AdvertisementRole::Makes; }
  /// Advertises `address`, the worker's first chunk for the peer; 0: through slots. `serves`:
  /// whether this exposing end sends the tiles that the peer pulls. Called once.
  void make_advertisement(uint64_t address, bool serves) {
    is_pending_ = false;
    serves_ = serves;
    has_agreed_ = address != 0 && advertisement::fits(address);
    // [advertisement] the exposed data is there. Pairs with [take].
    std::atomic_ref(peer_->advertisement)
        .store(advertisement::of(has_agreed_ ? address : 0, tag_, serves),
               std::memory_order_release);
  }
  /// Has this end made an advertisement that may be used? The other then does all the work.
  bool has_advertised() const { return makes_advertisement() && has_agreed_; }
  /// A sender that exposes, after its last step: does the peer need nothing of it any more, and has
  /// it taken the advertisement, whose place the next will take?
  bool is_released() {
    if (!is_direct_get_ || !makes_advertisement()) return true;
    // [credit]
    remote_ = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    return !is_before(remote_, end_);
  }

  /// Takes nothing, before the memory was used: data go through slots after all.
  void refuse() {
    if (taken_ == nullptr) return;
    taken_ = nullptr;
    has_agreed_ = false;
    // [refused] Before the first [publish].
    std::atomic_ref(peer_->detached).store(end_, std::memory_order_release);
  }

  /// Leaves an operation that goes no further; advertisement.h has the duties to the user of a
  /// buffer. The takers of all ports leave first, since the makers wait for the takers of other
  /// ranks.
  void leave_as_taker() {
    if (role_ != AdvertisementRole::Takes || !has_agreed_) return;
    // [detached] This end reads and stores no more.
    std::atomic_ref(peer_->detached).store(end_, std::memory_order_release);
  }
  /// Repeated until it is true: nobody uses the memory any more.
  bool leave_as_maker() {
    if (!has_advertised()) return true;
    if (!has_withdrawn_) {
      has_withdrawn_ = true;
      // Acquire, pairs with the taker's exchange: one of the two gets the advertisement.
      if (std::atomic_ref(peer_->advertisement)
              .exchange(advertisement::kNone, std::memory_order_acquire) != advertisement::kNone) {
        has_agreed_ = false;
        return true;
      }
    }
    // [arrival] or [credit], as ever; or [detached].
    const uint64_t remote = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    const uint64_t done = is_direct_get_ ? remote : call_tag::steps_in(remote, base_);
    return !is_before(done, end_) ||
           std::atomic_ref(own_->detached).load(std::memory_order_acquire) == end_;
  }

  /// Ends the operation: the next one continues with the step after.
  void end() {
    if (!is_followed_) own_->step = step_;
  }

  uint64_t step() const { return step_; }
  uint16_t tag() const { return tag_; }
  /// The slot of the present step.
  std::byte* slot() const { return slots_ + (step_ & (depth_ - 1)) * slot_bytes_; }
  /// Returns the place of the present chunk: in memory that this end has taken, so many bytes
  /// behind the worker's first chunk there (or before it: another channel's), or in the slot.
  std::byte* chunk(std::ptrdiff_t distance) const {
    return taken_ != nullptr ? taken_ + distance : slot();
  }
  /// By a team: the place of the present chunk in its windows (advertisement.h); 0: it goes through
  /// slots.
  uint64_t place(std::ptrdiff_t distance) const {
    return taken_ == nullptr ? 0 : reinterpret_cast<uint64_t>(taken_ + distance);
  }
  /// Is all of the operation's data in memory that this end has taken?
  bool has_taken() const { return taken_ != nullptr; }

  /// Sender: may the slot be written?
  bool has_credit() {
    if (role_ == AdvertisementRole::Takes && is_pending_) take_advertisement();
    if (is_pending_) return false;
    if (awaits_answer_ && has_agreed_) {
      // [credit] the peer has loaded all; or [refused].
      awaits_answer_ =
          is_before(std::atomic_ref(own_->remote).load(std::memory_order_acquire), end_);
      hear_refusal();
      if (awaits_answer_ && has_agreed_) return false;
    }
    if (has_agreed_) return true;
    if (is_before(step_, remote_ + depth_)) return true;
    // [credit] the receiver has read this slot's last content. Pairs with [consume] and [resume].
    remote_ = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    return is_before(step_, remote_ + depth_);
  }
  /// Receiver, Simple: has the slot been published, and by the same call?
  Arrival arrival() {
    if (role_ == AdvertisementRole::Takes) {
      if (is_pending_ && !foreign_tag_) take_advertisement();
      if (is_pending_)
        return foreign_tag_ ? Arrival{Arrived::Foreign, *foreign_tag_} : Arrival{Arrived::No};
      if (has_agreed_) return {Arrived::Yes};
    }
    if (is_before(step_, remote_)) return {Arrived::Yes};
    // Once seen it stays: the sender may go on to where its tags are not judged.
    if (foreign_tag_) return {Arrived::Foreign, *foreign_tag_};
    // [arrival] the slot's content is there to be read. Pairs with [publish].
    const uint64_t tail = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    const uint64_t produced = call_tag::steps_in(tail, step_);
    if (!is_before(step_, produced)) return {Arrived::No};
    // A tail beyond this operation has the tag of the sender's next.
    if (!is_before(end_, produced) && call_tag::tag_in(tail) != tag_) {
      foreign_tag_ = call_tag::tag_in(tail);
      return {Arrived::Foreign, *foreign_tag_};
    }
    remote_ = produced;
    if (awaits_answer_) {
      awaits_answer_ = false;
      hear_refusal();
    }
    return {Arrived::Yes};
  }
  /// Receiver, when the step's chunk has arrived: is it in the user's memory?
  bool has_landed() const {
    // relaxed: [arrival] acquired it.
    return places_ != nullptr &&
           std::atomic_ref(place_of(step_).is_landed).load(std::memory_order_relaxed) != 0;
  }

  /// Sender: the slot is written, with a chunk of so many bytes; on to the next step.
  /// `memory`: the chunk is there instead, in user memory.
  void sent(Protocol protocol, uint64_t bytes, const std::byte* memory = nullptr) {
    if (bell_ != nullptr && protocol == Protocol::LL) return sent_words(bytes);
    if (notes_ != nullptr) {
      uint64_t note = relay::note_of(static_cast<uint32_t>(bytes), tag_) | elements_;
      // relaxed, both: [publish] releases them.
      if (memory != nullptr) {
        note = relay::note_of_place(note, step_, end_);
        std::atomic_ref(place_of(step_).address)
            .store(reinterpret_cast<uint64_t>(memory), std::memory_order_relaxed);
        in_user_memory_until_ = step_ + 1;
      }
      std::atomic_ref(notes_[step_ & (depth_ - 1)]).store(note, std::memory_order_relaxed);
    }
    ++step_;
    if (protocol != Protocol::Simple || has_advertised()) return;
    // [publish] the slot's content, to the receiver's [arrival].
    std::atomic_ref(peer_->remote).store(call_tag::tail(step_, tag_), std::memory_order_release);
    if (bell_ != nullptr) bell_->announce(bytes);
  }
  /// When it has to wait: whoever ends that wakes the GPU's workers.
  bool is_woken() const { return bell_ != nullptr && bell_->wakes_kernels(); }
  /// Receiver: the slot has been read; on to the next step.
  void received() {
    if (places_ != nullptr) take_back_place();
    ++step_;
    // The sender cannot need the credit of the last `depth` steps in this operation, unless it may
    // expose; [resume] of the next operation gives it. Puts take no slot.
    if (has_advertised() || is_before(credited_, step_)) return;
    // [consume] the slot has been read; the sender may overwrite it after its [credit].
    std::atomic_ref(peer_->remote).store(step_, std::memory_order_release);
    if (bell_ != nullptr) bell_->announce();
  }

  /// Ends the use of taken memory: the worker has moved all its chunks there, in any channel. The
  /// other end hears of all steps at once.
  void done_at_taken(bool is_send) {
    step_ = end_;
    // [publish] or [consume]
    std::atomic_ref(peer_->remote)
        .store(is_send ? call_tag::tail(end_, tag_) : end_, std::memory_order_release);
  }

  // User memory at a connection to another machine (user_memory.h).

  bool reaches_user_memory() const { return places_ != nullptr; }
  /// May a chunk of so many bytes come there?
  bool may_place(uint64_t bytes) const {
    return places_ != nullptr && bytes >= user_memory_->least_bytes();
  }
  bool reaches(const std::byte* memory, uint64_t bytes) const {
    return user_memory_->reaches(memory, bytes);
  }
  /// May the next one be sent from there?
  bool may_send_from_memory(uint64_t bytes) const {
    return places_ != nullptr &&
           relay::may_send_from_place(bytes, step_ + 1 == end_, user_memory_->least_bytes());
  }
  /// Sender: is nothing on its way from user memory any more?
  bool is_drained() {
    if (!is_before(remote_, in_user_memory_until_)) return true;
    // [credit] the proxy reads no slot that it has freed.
    remote_ = std::atomic_ref(own_->remote).load(std::memory_order_acquire);
    if (!is_before(remote_, in_user_memory_until_)) return true;
    if (!user_memory_->is_abandoned() || !user_memory_->let_go(channel_)) return false;
    in_user_memory_until_ = remote_;
    return true;
  }
  /// Receiver: the next step of the operation, counted from its first, for which a place can be
  /// made; none: not before more have been received, or there are no more.
  std::optional<uint64_t> next_to_place() {
    if (is_before(placed_, step_)) placed_ = step_;
    if (!is_before(placed_, end_) || !is_before(placed_, step_ + depth_)) return std::nullopt;
    return placed_ - base_;
  }
  /// That step's chunk of so many bytes may go to `memory`. Null: it shall come to the slot.
  void place(std::byte* memory, uint64_t bytes) {
    if (memory != nullptr) {
      relay::Place& place = place_of(placed_);
      std::atomic_ref(place.note)
          .store(relay::note_of(static_cast<uint32_t>(bytes), tag_), std::memory_order_relaxed);
      // [place] Nobody else uses the memory. Pairs with the proxy's exchange.
      std::atomic_ref(place.address)
          .store(reinterpret_cast<uint64_t>(memory), std::memory_order_release);
      if (user_memory_->offers_places()) bell_->announce();
    }
    ++placed_;
  }
  /// The operation goes no further. Repeated until it is true: nobody uses its memory any more.
  bool let_go() { return places_ == nullptr || user_memory_->let_go(channel_); }

  // Pulls (pull.h): `most` is pull::most_of().

  /// Does the advertisement that was made or taken serve pulls?
  bool serves() const { return serves_; }
  /// Receiver: pulls a tile, whose number among its pulls is given. The tile pulled `most`
  /// pulls ago has been read.
  void pull(uint32_t number, uint32_t most, uint32_t tile) {
    // [pull] the place in the slots is free. Pairs with [pull] of take_pull().
    std::atomic_ref(peer_->pulls[number % most]).store(pull::of(tile), std::memory_order_release);
  }
  bool has_delivered(uint32_t number) const {
    // [delivered] the tile is there to be read. Pairs with [delivered] of deliver().
    return std::atomic_ref(own_->delivered).load(std::memory_order_acquire) > number;
  }
  std::byte* place_of(uint32_t number, uint32_t most, uint32_t tile_bytes) const {
    return slots_ + size_t{number % most} * tile_bytes;
  }
  /// When all that was pulled is there: nothing of it outlives the operation.
  void end_pulls() {
    // Relaxed: the next operation's first pull comes after its advertisement.
    std::atomic_ref(own_->delivered).store(0, std::memory_order_relaxed);
  }
  /// Sender: the tile that is to be stored to the place of deliveries().
  std::optional<uint32_t> take_pull(uint32_t most) {
    const std::atomic_ref word(own_->pulls[deliveries_ % most]);
    const uint32_t pull = word.load(std::memory_order_acquire);  // [pull]
    if (pull == pull::kNone) return std::nullopt;
    // Relaxed: before [delivered], and so before the next pull comes here.
    word.store(pull::kNone, std::memory_order_relaxed);
    return pull::tile_in(pull);
  }
  uint32_t deliveries() const { return deliveries_; }
  void deliver() {
    // [delivered]
    std::atomic_ref(peer_->delivered).store(++deliveries_, std::memory_order_release);
  }

  /// A sender that takes advertisements: the tag of the other call whose advertisement it has
  /// found.
  std::optional<uint16_t> foreign_tag() const { return foreign_tag_; }

 private:
  // To a proxy.
  void sent_words(uint64_t bytes) {
    const size_t offset =
        relay::ll_note_offset(channels_, static_cast<uint32_t>(step_ & (depth_ - 1)));
    auto* const note = reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(peer_) + offset);
    // relaxed: the note says by itself which step it is for, like the words. [announce] releases
    // it, and the words, to a proxy that sleeps.
    std::atomic_ref(*note).store(ll::pack(static_cast<uint32_t>(bytes), ll::flag_of(step_, tag_)),
                                 std::memory_order_relaxed);
    ++step_;
    bell_->announce(bytes);
  }
  relay::Place& place_of(uint64_t step) const { return places_[step & (depth_ - 1)]; }
  // Takes back the place of the present step, which has arrived: the proxy looks at its place no
  // more.
  void take_back_place() {
    // relaxed, both: [consume] releases them.
    std::atomic_ref(place_of(step_).address).store(0, std::memory_order_relaxed);
    std::atomic_ref(place_of(step_).is_landed).store(0, std::memory_order_relaxed);
  }
  void hear_refusal() {
    // [refused] pairs with refuse().
    if (std::atomic_ref(own_->detached).load(std::memory_order_acquire) == end_)
      has_agreed_ = false;
  }
  void take_advertisement() {
    // [take] the advertised memory is free to store to, or holds the exposed data. Pairs with
    // [advertisement].
    const uint64_t word = std::atomic_ref(own_->advertisement)
                              .exchange(advertisement::kNone, std::memory_order_acquire);
    if (word == advertisement::kNone) return;
    if (advertisement::tag_in(word) != tag_) {
      foreign_tag_ = advertisement::tag_in(word);
      return;
    }
    is_pending_ = false;
    taken_ = reinterpret_cast<std::byte*>(advertisement::address_in(word));
    serves_ = advertisement::serves(word);
    has_agreed_ = taken_ != nullptr;
  }

  // Compares by difference, as for all counters.
  static bool is_before(uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b) < 0; }

  ControlBlock* own_ = nullptr;
  ControlBlock* peer_ = nullptr;
  std::byte* slots_ = nullptr;  // of this channel
  const std::byte* team_ = nullptr;
  uint64_t step_ = 0;    // next step
  uint64_t remote_ = 0;  // the other end's counter when last looked at
  uint64_t base_ = 0;    // the operation's first step
  uint64_t end_ = 0;     // the step after its last
  uint32_t depth_ = 0;
  uint32_t slot_bytes_ = 0;
  uint16_t tag_ = 0;
  std::optional<uint16_t> foreign_tag_;
  bool is_followed_ = false;  // Turn::is_followed
  uint64_t credited_ = 0;     // the last step whose credit is given in this operation

  // For connections to other machines:
  uint64_t elements_ = 0;  // of notes
  relay::Bell* bell_ = nullptr;
  uint64_t* notes_ = nullptr;  // of this channel; Simple
  uint32_t channels_ = 0;      // of the connection
  relay::UserMemory* user_memory_ = nullptr;
  relay::Place* places_ = nullptr;  // of this channel
  uint32_t channel_ = 0;
  uint64_t in_user_memory_until_ = 0;  // no chunk of this step or later is on its way from there
  uint64_t placed_ = 0;                // places were made, or will not be, for the steps before it

  // For connections of direct puts or gets:
  AdvertisementRole role_ = AdvertisementRole::None;
  bool is_pending_ = false;     // not made, or not taken yet
  bool has_agreed_ = false;     // made or taken, with an address
  bool awaits_answer_ = false;  // made, by a team: who takes may still refuse
  bool has_withdrawn_ = false;
  bool is_direct_get_ = false;
  std::byte* taken_ = nullptr;
  bool serves_ = false;
  uint32_t deliveries_ = 0;
};

/// The operation goes no further: what its ends, PortStates or the like, have taken is let go of
/// before any waits for the takers of other ranks. False: ranks may still use the memory that this
/// one has advertised. May be repeated.
template <typename Ends>
bool leave_all(Ends& ends) {
  bool are_free = true;
  for (auto& end : ends) end.leave_as_taker();
  for (auto& end : ends) are_free = end.leave_as_maker() && are_free;
  return are_free;
}

}  // namespace niccolite::executor::host
