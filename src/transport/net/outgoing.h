// Outgoing: the sending end of a connection to another machine. The kernel sees a FIFO in this
// host's memory, whose receiver is the proxy (executor/protocol/relay.h):
//
//   kernel                                        proxy
//   slot, size entry (note), then          --->   acquires the tail; sends steps below the limit
//     `far.remote` = tail
//   acquires `own.remote` = head           <---   slots whose parts are with the receiver's proxy
//                                                 may be written again
//
// If the kernel has named a place in the user's memory (executor/protocol/user_memory.h), the
// step's bytes are sent from there.
//
// LL has no tail:
//
//   slot's words and size entry, in any    --->   sees the size entry of the next step; takes its
//     order                                       words as they come, and sends their data when
//                                                 all are there
//   acquires `own.remote` = head           <---   as above
//
// Invariant: freed <= taken <= min(produced, limit); produced - freed <= depth, which the kernel
// keeps, and limit - (steps that the receiver has consumed) <= depth, which the receiver keeps.
// Thread safety: port(), is_flushed() and the functions of UserMemory from any thread, all others
// on the proxy's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/memory.h"
#include "transport/net/chunk_copies.h"
#include "transport/net/frame.h"
#include "transport/net/proxy_end.h"

namespace niccolite::transport::net {

class Outgoing;

inline constexpr size_t kMostGrants = 1 << 16;  // connections and channels of a pair

/// Where the peer's kernel wants a chunk: in memory of the peer's user.
struct Offer {
  DirectName memory{};
  uint64_t offset = 0;  // there
};

/// A part of a chunk on its way, or a frame of the proxy's own.
struct Part {
  Frame frame;
  Outgoing* from = nullptr;
  bool is_of_user = false;  // under way: the network's device reads the user's memory
  /// Returns the bytes of a part of a chunk. The pointer is valid until the next call of any
  /// function.
  const std::byte* payload() const;
};

class Outgoing final : public ProxyEnd {
 public:
  /// Makes an end with memory that no other proxy shares.
  static Result<std::unique_ptr<Outgoing>> create(gpu::Allocations& allocations, const Key& key,
                                                  const executor::FifoShape& shape,
                                                  executor::relay::Bell& bell,
                                                  UserMemoryOptions user_memory = {});
  Outgoing(const Key& key, EndShare share, executor::relay::Bell& bell,
           const UserMemoryOptions& user_memory = {});
  /// True if the receiver's proxy has all that the kernel has published, or never will have it. A
  /// chunk with missing words is not published.
  bool is_flushed() const;

  /// The receiver will take no more.
  void abandon() {
    is_abandoned_.store(true, std::memory_order_relaxed);  // nothing depends on it
  }
  bool is_abandoned() const override { return is_abandoned_.load(std::memory_order_relaxed); }
  /// Returns the bytes of a part that is on its way.
  const std::byte* bytes_of(const Frame& part) const { return slot_of(part).data + part.offset; }
  /// Memory of the GPU from which the network's device reads them; null: from none.
  const DirectMemory* memory_of(const Frame& part) const {
    const Slot& slot = slot_of(part);
    return slot.is_of_user ? slot.memory.get() : direct();
  }
  /// Copies them to memory of the host.
  Status load(const Frame& part, std::byte* to) const;
  bool is_of_user(const Frame& part) const { return slot_of(part).is_of_user; }
  /// Where the receiver wants the chunk; null: in its slot. Equal for all parts.
  const Offer* offer_for(const Frame& part) const {
    const std::optional<Offer>& target = slot_of(part).target;
    return target ? &*target : nullptr;
  }
  /// The receiver wants a chunk there. Comes too late for a step that was queued.
  void offer(const Frame& place, const Offer& offer);
  /// No chunk that is queued from now on goes to a place that was offered.
  void forget_offers(uint32_t channel);
  /// The network's device begins, or ends, to read a part from the user's memory.
  void reads(const Frame& part) { ++channels_[part.channel].reads; }
  void has_read(const Frame& part) { --channels_[part.channel].reads; }
  /// The receiver has room for the steps before `limit`.
  void grant(uint32_t channel, uint64_t limit);
  /// The most bytes of a part. `is_direct`: a chunk that the network's device reads by itself is
  /// one part, as one that the peer wants at a place of its user's always is.
  struct PartSize {
    uint32_t bytes;
    bool is_direct = false;
  };
  /// Calls `queue(part)` for all that may be sent. True when there was any.
  bool collect(PartSize most, const std::function<void(const Part&)>& queue);
  /// Describes a part's step for an observer.
  ProxyStep step_of(const Frame& part) const {
    return step_of(part.channel, part.step, part.bytes);
  }
  /// Calls `queue(frame)` for each channel whose kernel has more to send than the receiver has room
  /// for, as far as is known: once, until there is more room.
  void ask_for_credit(const std::function<void(const Frame&)>& queue);
  /// A request for credit may not have arrived: ask_for_credit() asks again.
  void ask_again();
  /// Does the kernel have more to send than the receiver has room for?
  bool waits_for_credit() const;
  /// The slot's bytes of this part have been sent and are needed no longer.
  void sent(const Frame& frame);

 private:
  using ProxyEnd::step_of;
  bool leave(uint32_t channel) override {
    return leave_when([&] { return stop_using(channel); });
  }
  bool stop_using(uint32_t channel) override {
    empty_to_slots(channel);
    return channels_[channel].reads == 0;
  }
  struct Slot {
    uint32_t parts = 0;  // on their way
    uint32_t bytes = 0;
    const std::byte* data = nullptr;               // where the chunk is
    bool is_of_user = false;                       // there
    std::shared_ptr<const DirectMemory> memory{};  // of the user's, as the network knows it
    std::optional<Offer> target{};                 // none: the receiver's slot
    // The receiver's last one, for a chunk that is yet to be taken.
    std::optional<std::pair<Frame, Offer>> offered{};
  };
  struct Channel {
    uint64_t limit = 0;  // the receiver has room for the steps before it
    uint64_t asked = 0;  // the limit at the last request for credit
    uint64_t taken = 0;  // steps that were queued
    uint64_t freed = 0;  // steps whose slots the kernel may write again
    std::vector<Slot> slots;
    uint64_t reads = 0;  // parts that the network's device reads from the user's memory
    uint64_t words = 0;  // LL: of the step `taken` that have been taken
  };
  struct Chunk {
    uint32_t bytes;
    uint16_t call;
    uint16_t flags;  // of its parts
    const std::byte* data;
    bool is_of_user = false;
  };

  const Slot& slot_of(const Frame& part) const {
    return channels_[part.channel].slots[part.step & (shape_.depth - 1)];
  }

  /// Has the kernel published the step? By LL: has it begun to? Any thread.
  bool has_begun(uint32_t channel, uint64_t step) const;
  /// LL: are all words of such a step there? Any thread.
  bool has_all_words(uint32_t channel, uint64_t step) const;
  /// The step that is to be taken next, which its note says is published.
  Chunk published_chunk(uint32_t channel) const;
  /// LL: that step, once all of it has come.
  std::optional<Chunk> next_by_words(uint32_t channel);
  void queue_chunk(uint32_t channel, const Chunk& chunk, PartSize most,
                   const std::function<void(const Part&)>& queue);
  bool is_of_user(uint64_t note) const {
    return loop_ != nullptr && (note & executor::relay::kInUserMemory) != 0;
  }
  const std::byte* chunk_of(uint32_t channel, uint64_t step, uint64_t note) const;
  void empty_to_slots(uint32_t channel);

  std::vector<Channel> channels_;
  ChunkCopies copies_;  // LL
  std::atomic<bool> is_abandoned_{false};
};

inline const std::byte* Part::payload() const { return from->bytes_of(frame); }

}  // namespace niccolite::transport::net
