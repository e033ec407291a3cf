// Incoming: the receiving end of a connection to another machine. The kernel sees a FIFO in this
// host's memory, whose sender is the proxy (executor/protocol/relay.h):
//
//   proxy                                          kernel
//   slot, then `own.remote` = tail          --->   acquires the tail; reads the slot
//   acquires `far.remote` = head            <---   the slot has been read
//   tells the sender's proxy: head + depth
//
// Where the kernel has named a place for a step in the user's memory, its bytes go there
// (executor/protocol/user_memory.h). If the peer's device shall write them there, the place is
// offered to the peer before. An offer is over when the step's chunk has come, wherever it went, or
// when the peer has answered that it is withdrawn. By LL there is no tail: a whole chunk's data are
// stored to the slot in words with the step's and the call's flag, for which the kernel looks.
//
// On a connection for puts there is no kernel: a PutSink takes each chunk at once (put_sink.h).
//
// Parts of a chunk may come in any order; a step is published when it and all before it are whole,
// each with the tag of its own call. Thread safety: port() and what UserMemory has from any
// thread, the rest on the proxy's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/memory.h"
#include "transport/net/chunk_copies.h"
#include "transport/net/frame.h"
#include "transport/net/proxy_end.h"
#include "transport/put_sink.h"

namespace niccolite::transport::net {

class Incoming final : public ProxyEnd {
 public:
  /// Makes an end with memory that no other proxy shares.
  static Result<std::unique_ptr<Incoming>> create(gpu::Allocations& allocations, const Key& key,
                                                  const executor::FifoShape& shape,
                                                  executor::relay::Bell& bell,
                                                  UserMemoryOptions user_memory = {});
  Incoming(const Key& key, EndShare share, executor::relay::Bell& bell,
           const UserMemoryOptions& user_memory = {});

  /// Called before it is used: chunks go to `sink`, and no kernel takes any.
  void pour_into(PutSink sink) { sink_ = std::move(sink); }
  bool is_abandoned() const override { return false; }

  /// Takes a part in. RemoteError for a part that no honest sender sends: none of its bytes is
  /// stored.
  Status accept(const Frame& part);
  /// Returns the place for the bytes of such a part, for as long as nothing else is done.
  std::byte* place_of(const Frame& part) const { return slot_of(part).chunk + part.offset; }
  /// Stores the bytes of such a part there.
  Status store(const Frame& part, const std::byte* from) const;
  /// They are there.
  void arrived(const Frame& part);
  enum class Credit {
    Wanted,  // credit that the sender has asked for, or may not have heard of
    Half,    // on each channel as much as half the FIFO, too: a frame for several steps
    All,
  };
  /// Calls `queue(frame)` for credit that the sender does not know of. True when there was any.
  bool collect(Credit which, const std::function<void(const Frame&)>& queue);
  /// Credit that was told may not have arrived: collect() tells all of it again.
  void tell_again();
  /// The sender waits for credit on that channel.
  void want(uint32_t channel) {
    if (channel < channels_.size()) channels_[channel].is_wanted = true;
  }
  uint32_t depth() const { return shape_.depth; }

  bool offers_places() const override { return direct() != nullptr && loop_ != nullptr; }
  /// Calls `queue(frame)` for each new place of the kernel's, if the peer's device writes to memory
  /// of this GPU, and for each channel whose offers must be withdrawn.
  void collect_offers(bool writes_directly, const std::function<void(const Frame&)>& queue);
  /// The place that such a frame offers; null: it is over.
  struct Place {
    std::byte* address = nullptr;
    std::shared_ptr<const DirectMemory> memory{};
  };
  const Place* place_offered(const Frame& frame) const;
  /// The peer writes to no place any more that was offered on this channel.
  void withdrawn(uint32_t channel);
  /// The peer writes nothing any more.
  void peer_has_ended();

 private:
  bool leave(uint32_t channel) override;
  bool stop_using(uint32_t channel) override;
  struct Slot {
    bool is_begun = false;
    uint16_t call = 0;
    uint32_t bytes = 0;          // of the chunk
    uint32_t missing = 0;        // not yet there
    std::byte* chunk = nullptr;  // where they go
    bool is_in_place = false;    // the peer says so
    // Offered to the peer; none: the offer is over.
    std::optional<std::pair<Frame, Place>> offered{};
  };
  struct Channel {
    uint64_t published = 0;  // steps that the kernel sees
    uint64_t told = 0;       // the sender may send the steps before it
    bool is_told = true;     // and may not know it, if false
    bool is_wanted = false;  // it waits for more
    size_t offers = 0;       // that are not over
    enum class Withdrawal : uint8_t { None, Wanted, Asked } withdrawal = Withdrawal::None;
    std::vector<Slot> slots;
  };

  const Slot& slot_of(const Frame& part) const {
    return channels_[part.channel].slots[part.step & (shape_.depth - 1)];
  }
  Result<std::byte*> take_place(const Frame& part);
  executor::relay::Place& place_of(uint32_t channel, uint64_t step) {
    return places_[size_t{channel} * shape_.depth + (step & (shape_.depth - 1))];
  }
  static void end_offer(Channel& channel, Slot& slot);
  void land(uint32_t channel, const Slot& chunk);
  void store_words(uint32_t channel, uint64_t step, const Slot& chunk) const;

  std::vector<Channel> channels_;
  ChunkCopies copies_;  // LL
  PutSink sink_;        // null: a kernel takes the chunks
  bool has_refused_ = false;
};

}  // namespace niccolite::transport::net
