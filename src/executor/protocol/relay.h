// Relays: connections between machines. A FIFO needs memory that both ends see; two machines have
// none. So each end has a FIFO of its own, in host memory, whose other end is the *proxy*, a thread
// that carries slots from one to the other (transport/net/proxy.h). Compared with other
// connections, an executor does two more things:
//
//   note   the sender describes the contents of a slot: its bytes, so that the proxy carries no
//          more, and the tag of the call (call_tag.h), since a proxy that finds several steps
//          published sees the tag of the last. Simple: written before the tail, and read after it.
//          LL has no tail. There the note carries its step, like each of the words, and is written
//          in any order with them: it is itself a word (ll.h), and its data are the chunk's bytes.
//          An empty chunk has a note, too.
//   bell   an end that has moved a counter wakes the proxy, if it sleeps. Virtual GPUs do the
//          proxy's work themselves, which is then done before announce() returns
//
// Where the proxy reaches the memory of this rank's user, chunks need not go through slots
// (user_memory.h); the note then says so.
//
// All credit is given in the operation: the receiver's store goes to its own host's memory, and the
// sender, a round trip away, cannot wait for the next operation to begin. But works that take turns
// on a connection (LL) give it late, as at any other (fifo.h): they read their slots in any order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "executor/protocol/fifo.h"

namespace niccolite::executor::relay {

/// LL: where the note of a slot lies, bytes behind the proxy's control block of the channel, which
/// is the kernel's PortAddress::remote_control. A channel has a block of its own for every 16
/// slots, so that a kernel finds it without another address:
///
///   proxy's control blocks    [channel]            ControlBlock
///   notes by LL               [slot / 16][channel] uint64_t [16]
inline constexpr uint32_t kNotesOfBlock = sizeof(ControlBlock) / sizeof(uint64_t);
constexpr size_t ll_note_offset(uint32_t channels, uint32_t slot) {
  return size_t{1 + slot / kNotesOfBlock} * channels * sizeof(ControlBlock) +
         slot % kNotesOfBlock * sizeof(uint64_t);
}

constexpr uint64_t note_of(uint32_t bytes, uint16_t tag) { return uint64_t{tag} << 48 | bytes; }
/// In a note: the chunk is not in the slot, but where the slot's place says (user_memory.h).
inline constexpr uint64_t kInUserMemory = uint64_t{1} << 32;
/// In a note: the chunk is in user memory, and the kernel ends soon, when it has arrived.
inline constexpr uint64_t kIsAwaited = uint64_t{1} << 33;
/// In a note for the network's reducer, bits 34 to 47: the type of the chunk's elements, their
/// reduction, and the number of channels that the operation has (1 to 64). Others do not look at
/// it.
constexpr uint64_t elements_of(uint8_t type, uint8_t operation, uint32_t channels) {
  return uint64_t{channels - 1} << 34 | uint64_t{type} << 40 | uint64_t{operation} << 44;
}
constexpr uint8_t type_in(uint64_t note) { return note >> 40 & 0xf; }
constexpr uint8_t operation_in(uint64_t note) { return note >> 44 & 0xf; }
constexpr uint32_t channels_in(uint64_t note) { return (note >> 34 & 0x3f) + 1; }
constexpr uint32_t bytes_in(uint64_t note) { return static_cast<uint32_t>(note); }
constexpr uint16_t tag_in(uint64_t note) { return static_cast<uint16_t>(note >> 48); }

/// Wakes the proxy. Both sides exchange the same word, so that one of them comes second: a proxy
/// that goes to sleep second sees the counters that were moved before, and an executor that comes
/// second sees that it has to ring.
class Bell {
 public:
  /// `ring(context, bytes)` wakes the proxy, from any thread. `wakes_kernels`: whoever moves a
  /// counter that a virtual GPU's kernel waits for wakes the GPU's workers
  /// (gpu::virtual_::Task::is_woken()).
  Bell(void (*ring)(void*, uint64_t), void* context, bool wakes_kernels = false)
      : ring_(ring), context_(context), wakes_kernels_(wakes_kernels) {}

  /// Executor: a counter has been moved (its store precedes this), after so many bytes were written
  /// to a slot.
  void announce(uint64_t bytes = 0) {
    // [announce] Releases the counter to [sleep]; sees whether [sleep] came before.
    if (is_asleep_.exchange(false, std::memory_order_acq_rel)) ring_(context_, bytes);
  }
  bool wakes_kernels() const { return wakes_kernels_; }
  /// Proxy: from now on it has to be rung for; looks at all counters once more before it sleeps.
  void go_to_sleep() {
    // [sleep] Acquires the counters of every [announce] before it.
    is_asleep_.exchange(true, std::memory_order_acq_rel);
  }
  /// Proxy: is awake.
  void wake_up() {
    // Exchanges, as all do: a mere store would come between [announce] and the [sleep] that has to
    // acquire its counter.
    is_asleep_.exchange(false, std::memory_order_acq_rel);
  }

 private:
  alignas(64) std::atomic<bool> is_asleep_{false};
  void (*const ring_)(void*, uint64_t);
  void* const context_;
  const bool wakes_kernels_;
};

}  // namespace niccolite::executor::relay
