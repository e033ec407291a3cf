// User memory at connections to other machines: where the proxy (relay.h) reaches the buffers of
// this rank's user, bytes that a kernel would only copy between a buffer and a slot never see the
// slot. The slot is still the step's: credit, tails and heads are as ever, and its memory is there
// for bytes whose buffer is wanted back. A *place* belongs to each slot.
//
//   sender    kernel: place = where the chunk is, its note with kInUserMemory, tail
//             proxy:  sends from there
//             kernel: neither changes the chunk nor ends before its slot is free, that is, before the
//                     peer's proxy has all of it: until then it may have to be sent once more, on
//                     another connection
//   receiver  kernel: place = where the chunk shall go, once nobody else uses that memory
//             proxy:  at the chunk's first byte takes the place (exchanges it for 0) or, if there is
//                     none, or it is for a chunk of another call or length, the slot; marks which,
//                     then the tail
//             kernel: finds the chunk where the mark says; takes back a place that nobody took, then
//                     gives credit
//
// A place is for the step whose turn its slot is, and no other: a kernel makes it after it has read
// the slot's last step, and takes it back before it gives credit for its own.
//
// Where the network's device writes to the user's memory itself, the sender must know the place
// before it sends. There the proxy takes a place as soon as it is made, and offers it to the sender
// (transport/net/messenger.h). The sender says with the chunk whether it came to that place.
//
// An operation that goes no further leaves by let_go(): published chunks are copied to their slots,
// from where the peers still get them, and later arrivals go to slots that nobody reads. A place
// that was offered is withdrawn first. From then on the buffers belong to their user.
//
// Kernels of GPUs cannot call it. Once such a kernel names no more places, it stores the end of its
// operation to `detached` of the proxy's control block; the proxy lets go, and stores it to
// `detached` of the kernel's. If the receiver will take no more (is_abandoned()), the proxy lets go
// unasked, and says kAbandoned there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "executor/protocol/relay.h"

namespace niccolite::executor::relay {

struct Place {
  uint64_t address = 0;    // 0: none
  uint64_t note = 0;       // receiver: of the chunk that may go there (note_of())
  uint64_t is_landed = 0;  // receiver: the step's chunk went there
  uint64_t reserved = 0;
};
static_assert(sizeof(Place) == 32);

/// In the place of an operation's end, which no operation has.
inline constexpr uint64_t kAbandoned = ~uint64_t{0};

/// Sender: may a chunk of so many bytes be sent from its place? The operation ends when its last
/// one has arrived, for which a small one is not worth to wait.
constexpr bool may_send_from_place(uint64_t bytes, bool is_last, uint64_t least_bytes) {
  constexpr uint64_t kWorthWaiting = 4;
  return (is_last ? bytes / kWorthWaiting : bytes) >= least_bytes;
}
/// The note of a chunk at its place, of a step of an operation that ends before step `end`.
constexpr uint64_t note_of_place(uint64_t note, uint64_t step, uint64_t end) {
  return note | kInUserMemory | (end - step <= 2 ? kIsAwaited : 0);
}

/// The proxy's service at one end of a connection. Thread safety: any thread.
class UserMemory {
 public:
  /// Chunks of fewer bytes go through slots: a kernel does not end before its last ones have been
  /// acknowledged, which takes longer than to copy them.
  uint64_t least_bytes() const { return least_bytes_; }
  /// Does it reach any memory of the user's now? A hint.
  virtual bool reaches_any() const { return true; }
  /// Receiver: does it take places before their chunks come? Then the bell tells of them.
  virtual bool offers_places() const { return false; }
  /// Does it reach these bytes of the user's? Else they go through slots.
  virtual bool reaches(const std::byte* /*memory*/, uint64_t /*bytes*/) const { return true; }
  /// [channel][depth], also for kernels; null where user memory is not reached.
  Place* places() const { return places_; }
  /// Called when no kernel runs on that channel: from now on nobody touches user memory that
  /// kernels have named there. False: not yet; to be tried again.
  virtual bool let_go(uint32_t channel) = 0;
  /// Sender: the receiver will take no more.
  virtual bool is_abandoned() const = 0;

 protected:
  explicit UserMemory(uint64_t least_bytes) : least_bytes_(least_bytes) {}
  ~UserMemory() = default;
  Place* places_ = nullptr;

 private:
  const uint64_t least_bytes_;
};

}  // namespace niccolite::executor::relay
