#include "transport/net/incoming.h"

#include <algorithm>
#include <atomic>

#include "executor/host/ll_words.h"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/ll.h"

namespace niccolite::transport::net {

using executor::FifoShape;

namespace ll = executor::ll;
namespace relay = executor::relay;
namespace tag = executor::call_tag;

Result<std::unique_ptr<Incoming>> Incoming::create(gpu::Allocations& allocations, const Key& key,
                                                   const FifoShape& shape, relay::Bell& bell,
                                                   UserMemoryOptions user_memory) {
  return std::make_unique<Incoming>(
      key, EndShare(TRY(EndMemory::allocate(allocations, shape, /*is_send=*/false))), bell,
      user_memory);
}

Incoming::Incoming(const Key& key, EndShare share, relay::Bell& bell,
                   const UserMemoryOptions& user_memory)
    : ProxyEnd(/*is_send=*/false, key, std::move(share), bell, user_memory),
      channels_(shape_.channels),
      copies_(shape_) {
  for (Channel& channel : channels_) channel.slots.resize(shape_.depth);
}

Status Incoming::accept(const Frame& part) {
  if (part.channel >= channels_.size())
    return Status::remote_error("a chunk for channel {} of {}", part.channel, channels_.size());
  Channel& channel = channels_[part.channel];
  if (part.step < channel.published || part.step >= channel.told)
    return Status::remote_error("a chunk of step {}, expected are {} to {}", part.step,
                                channel.published, channel.told);
  if (part.bytes > slot_data_bytes() || part.offset > part.bytes ||
      part.length > part.bytes - part.offset)
    return Status::remote_error("bytes {} to {} of a chunk of {} in a slot of {}", part.offset,
                                uint64_t{part.offset} + part.length, part.bytes, slot_data_bytes());
  Slot& slot = channel.slots[part.step & (shape_.depth - 1)];
  if (!slot.is_begun)
    slot = {.is_begun = true,
            .call = part.call,
            .bytes = part.bytes,
            .missing = part.bytes,
            .chunk = take_place(part)};
  if (slot.bytes != part.bytes || slot.call != part.call || slot.missing < part.length)
    return Status::remote_error("parts of step {} that do not belong together", part.step);
  return {};
}

// Chooses the place of a whole chunk, at its first part.
std::byte* Incoming::take_place(const Frame& part) {
  if (is_by_words()) return copies_.of(part.channel, part.step);
  std::byte* const slot = share_.slot(part.channel, part.step);
  if (loop_ == nullptr) return slot;
  relay::Place& place =
      places_[size_t{part.channel} * shape_.depth + (part.step & (shape_.depth - 1))];
  // Acquire, pairs with the kernel's [place].
  const uint64_t address = std::atomic_ref(place.address).exchange(0, std::memory_order_acquire);
  const uint64_t note = std::atomic_ref(place.note).load(std::memory_order_relaxed);
  if (address == 0 || note != relay::note_of(part.bytes, part.call)) return slot;
  // relaxed: [publish] releases it.
  std::atomic_ref(place.is_landed).store(1, std::memory_order_relaxed);
  return reinterpret_cast<std::byte*>(address);
}

bool Incoming::let_go(uint32_t channel) {
  return loop_ == nullptr || loop_->try_borrow([&] {
    for (uint64_t slot = 0; slot < shape_.depth; ++slot) {
      const size_t number = size_t{channel} * shape_.depth + slot;
      std::atomic_ref(places_[number].address).store(0, std::memory_order_relaxed);
      channels_[channel].slots[slot].chunk = share_.slot(channel, slot);
    }
  });
}

void Incoming::arrived(const Frame& part) {
  Channel& channel = channels_[part.channel];
  const auto slot_of = [&](uint64_t step) -> Slot& {
    return channel.slots[step & (shape_.depth - 1)];
  };
  slot_of(part.step).missing -= part.length;
  while (channel.published < channel.told) {
    Slot& next = slot_of(channel.published);
    if (!next.is_begun || next.missing > 0) break;
    next.is_begun = false;
    if (observer_ != nullptr)
      observer_->step(step_of(part.channel, channel.published, next.bytes),
                      ProxyStepState::Arrived);
    if (is_by_words()) {
      store_words(part.channel, channel.published++, next);
      continue;
    }
    ++channel.published;
    if (sink_) {
      land(part.channel, next);
      continue;
    }
    // [publish] of the proxy: the slot's content. Pairs with the kernel's [arrival].
    std::atomic_ref(share_.own(part.channel).remote)
        .store(tag::tail(channel.published, next.call), std::memory_order_release);
  }
}

// In the place of a kernel: the store is its [consume].
void Incoming::land(uint32_t channel, const Slot& chunk) {
  has_refused_ = has_refused_ || !sink_(peer(), {chunk.chunk, chunk.bytes});
  if (has_refused_) return;
  std::atomic_ref(share_.far(channel).remote)
      .store(channels_[channel].published, std::memory_order_release);
}

// The sender's kernel has cleaned its own slot (ll.h); this one is the proxy's to clean.
void Incoming::store_words(uint32_t channel, uint64_t step, const Slot& chunk) const {
  std::byte* const slot = share_.slot(channel, step);
  const uint32_t flag = ll::flag_of(step, chunk.call);
  executor::host::ll_pack(slot, 0, chunk.bytes, flag, chunk.chunk);
  if (ll::cleans(step, shape_.depth))
    executor::host::ll_clean(slot, chunk.bytes, shape_.slot_bytes, flag);
}

bool Incoming::collect(Credit which, const std::function<void(const Frame&)>& queue) {
  bool any = false;
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    // [credit] of the proxy: the kernel has read the slots. Pairs with the kernel's [consume].
    const uint64_t read =
        std::atomic_ref(share_.far(number).remote).load(std::memory_order_acquire);
    // A kernel with LL does not wait for an empty chunk, so its head may be ahead of the published
    // steps.
    const uint64_t head = is_by_words() ? std::min(read, channel.published) : read;
    const bool is_news = head <= channel.published && head + shape_.depth > channel.told;
    const uint64_t least = which == Credit::All    ? 1
                           : which == Credit::Half ? std::max(shape_.depth / 2, 1u)
                                                   : UINT64_MAX;
    const bool is_due =
        is_news && (channel.is_wanted || head + shape_.depth - channel.told >= least);
    if (!is_due && channel.is_told) continue;
    if (is_news) channel.is_wanted = false;
    if (is_news) channel.told = head + shape_.depth;
    if (is_news && head > 0 && observer_ != nullptr)
      observer_->step(step_of(number, head - 1, 0), ProxyStepState::Read);
    channel.is_told = true;
    queue({.kind = FrameKind::Credit,
           .protocol = static_cast<uint8_t>(key_.protocol),
           .tag = static_cast<uint16_t>(key_.tag),
           .channel = number,
           .step = channel.told});
    any = true;
  }
  return any;
}

void Incoming::tell_again() {
  for (Channel& channel : channels_) channel.is_told = channel.told == 0;
}

}  // namespace niccolite::transport::net
