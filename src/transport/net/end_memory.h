// EndMemory: the page-locked host memory of one end of a connection to another machine. Its slots
// may lie in memory of the GPU that the network's device reaches (network.h). It has the counters
// of the kernel's side and of the proxy's side, size entries (notes) at the sender, slots
// (executor/protocol/relay.h), and a place for each slot (executor/protocol/user_memory.h). The
// proxies of a rank may share an end: proxy p of n then has the channels p, p + n, ..., which it
// counts from 0 on, as the peer's proxy p does.
#pragma once

#include <cstdint>
#include <memory>

#include "executor/protocol/fifo.h"
#include "executor/protocol/relay.h"
#include "executor/protocol/user_memory.h"
#include "gpu/memory.h"
#include "transport/net/network.h"

namespace niccolite::transport::net {

class EndMemory {
 public:
  static Result<std::shared_ptr<const EndMemory>> allocate(
      gpu::Allocations& allocations, const executor::FifoShape& shape, bool is_send,
      std::shared_ptr<DirectMemory> slots = {});

  const executor::FifoShape& shape() const { return shape_; }
  /// All slots; null: they lie in host memory.
  const DirectMemory* direct() const { return direct_.get(); }
  /// [channel][depth]
  executor::relay::Place* places() const { return places_; }
  /// The port of the kernel, with all channels. It has neither doorbells nor the user's memory.
  executor::PortAddress port() const;

 private:
  friend class EndShare;
  EndMemory(const executor::FifoShape& shape, gpu::Memory memory, bool is_send,
            std::shared_ptr<DirectMemory> slots);

  const executor::FifoShape shape_;
  const gpu::Memory memory_;
  const std::shared_ptr<DirectMemory> direct_;
  executor::ControlBlock* own_;  // by channel; the kernel's
  executor::ControlBlock* far_;  // the proxy's
  executor::relay::Place* places_;
  uint64_t* notes_;  // behind far_, as LL has them; null at a receiver
  std::byte* slots_;
};

/// The share of one proxy in an EndMemory.
class EndShare {
 public:
  /// The share of proxy `proxy` of `proxies`.
  EndShare(std::shared_ptr<const EndMemory> memory, uint32_t proxy, uint32_t proxies)
      : memory_(std::move(memory)), first_(proxy), stride_(proxies) {}
  /// The whole EndMemory.
  explicit EndShare(std::shared_ptr<const EndMemory> memory) : EndShare(std::move(memory), 0, 1) {}

  const EndMemory& memory() const { return *memory_; }
  /// The shape of the share's channels.
  executor::FifoShape shape() const {
    executor::FifoShape shape = memory_->shape_;
    shape.channels = shape.channels <= first_ ? 0 : (shape.channels - first_ - 1) / stride_ + 1;
    return shape;
  }
  /// The channel of the end that is this one of the share.
  uint32_t channel_of_end(uint32_t channel) const { return first_ + channel * stride_; }
  executor::ControlBlock& own(uint32_t channel) const {
    return memory_->own_[channel_of_end(channel)];
  }
  executor::ControlBlock& far(uint32_t channel) const {
    return memory_->far_[channel_of_end(channel)];
  }
  /// Simple.
  uint64_t& note(uint32_t channel, uint64_t slot) const {
    return memory_->notes_[size_t{channel_of_end(channel)} * memory_->shape_.depth + slot];
  }
  /// LL: of the step's slot.
  uint64_t& ll_note(uint32_t channel, uint64_t step) const {
    const executor::FifoShape& shape = memory_->shape_;
    const size_t offset = executor::relay::ll_note_offset(
        shape.channels, static_cast<uint32_t>(step & (shape.depth - 1)));
    return *reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(&far(channel)) + offset);
  }
  std::byte* slot(uint32_t channel, uint64_t step) const {
    return memory_->slots_ + memory_->shape_.slot_offset(channel_of_end(channel), step);
  }

 private:
  std::shared_ptr<const EndMemory> memory_;
  uint32_t first_;
  uint32_t stride_;
};

}  // namespace niccolite::transport::net
