#include "transport/net/incoming.h"

#include <algorithm>
#include <atomic>
#include <cstring>

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
  const bool is_in_place = (part.flags & kInPlace) != 0;
  if (!slot.is_begun) {
    slot.chunk = TRY(take_place(part));
    slot.is_begun = true;
    slot.call = part.call;
    slot.bytes = slot.missing = part.bytes;
    slot.is_in_place = is_in_place;
  }
  if (slot.bytes != part.bytes || slot.call != part.call || slot.missing < part.length ||
      slot.is_in_place != is_in_place)
    return Status::remote_error("parts of step {} that do not belong together", part.step);
  return {};
}

// Chooses the place of a whole chunk, at its first part.
Result<std::byte*> Incoming::take_place(const Frame& part) {
  if ((part.flags & kInPlace) != 0) {
    const Place* const offered = place_offered(part);
    if (offered == nullptr)
      return Status::remote_error("step {} in a place that was not offered", part.step);
    // relaxed: [publish] releases it.
    std::atomic_ref(place_of(part.channel, part.step).is_landed)
        .store(1, std::memory_order_relaxed);
    return offered->address;
  }
  if (is_by_words()) return copies_.of(part.channel, part.step);
  std::byte* const slot = share_.slot(part.channel, part.step);
  // Others write to slots in memory of the GPU themselves, and to offered places alone.
  if (loop_ == nullptr || direct() != nullptr) return slot;
  relay::Place& place = place_of(part.channel, part.step);
  // Acquire, pairs with the kernel's [place].
  const uint64_t address = std::atomic_ref(place.address).exchange(0, std::memory_order_acquire);
  const uint64_t note = std::atomic_ref(place.note).load(std::memory_order_relaxed);
  if (address == 0 || note != relay::note_of(part.bytes, part.call)) return slot;
  // relaxed: [publish] releases it.
  std::atomic_ref(place.is_landed).store(1, std::memory_order_relaxed);
  return reinterpret_cast<std::byte*>(address);
}

Status Incoming::store(const Frame& part, const std::byte* from) const {
  if (direct() != nullptr) return direct()->store(place_of(part), from, part.length);
  std::memcpy(place_of(part), from, part.length);
  return {};
}

bool Incoming::stop_using(uint32_t number) {
  Channel& channel = channels_[number];
  for (uint64_t slot = 0; slot < shape_.depth; ++slot)
    std::atomic_ref(place_of(number, slot).address).store(0, std::memory_order_relaxed);
  if (channel.offers > 0 && channel.withdrawal == Channel::Withdrawal::None)
    channel.withdrawal = Channel::Withdrawal::Wanted;
  return channel.offers == 0;
}

bool Incoming::leave(uint32_t number) {
  if (!leave_when([&] { return stop_using(number); })) return false;
  Channel& channel = channels_[number];
  for (uint64_t slot = 0; slot < shape_.depth; ++slot) {
    end_offer(channel, channel.slots[slot]);
    channel.slots[slot].chunk = share_.slot(number, slot);
  }
  return true;
}

// ---- offers

// A place whose slot has credit is of the step whose turn the slot is: the kernel has taken back
// the place of the step before.
void Incoming::collect_offers(bool writes_directly,
                              const std::function<void(const Frame&)>& queue) {
  if (!offers_places()) return;
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    const Frame frame{.protocol = static_cast<uint8_t>(key_.protocol),
                      .tag = static_cast<uint16_t>(key_.tag),
                      .channel = number};
    if (channel.withdrawal == Channel::Withdrawal::Wanted) {
      channel.withdrawal = Channel::Withdrawal::Asked;
      Frame withdrawal = frame;
      withdrawal.kind = FrameKind::Withdraw;
      queue(withdrawal);
    }
    if (!writes_directly || channel.withdrawal != Channel::Withdrawal::None) continue;
    for (uint64_t step = channel.published; step < channel.told; ++step) {
      relay::Place& place = place_of(number, step);
      Slot& slot = channel.slots[step & (shape_.depth - 1)];
      // relaxed: the exchange acquires it.
      if (slot.is_begun || slot.offered ||
          std::atomic_ref(place.address).load(std::memory_order_relaxed) == 0)
        continue;
      // Acquire, pairs with the kernel's [place].
      auto* const address = reinterpret_cast<std::byte*>(
          std::atomic_ref(place.address).exchange(0, std::memory_order_acquire));
      const uint64_t note = std::atomic_ref(place.note).load(std::memory_order_relaxed);
      std::shared_ptr<const DirectMemory> memory =
          buffers_->find(address, relay::bytes_in(note), /*is_send=*/false);
      if (memory == nullptr) continue;  // the chunk comes to the slot
      Frame offer = frame;
      offer.kind = FrameKind::Place;
      offer.step = step;
      offer.bytes = relay::bytes_in(note);
      offer.call = relay::tag_in(note);
      slot.offered.emplace(offer, Place{.address = address, .memory = std::move(memory)});
      ++channel.offers;
      queue(offer);
    }
  }
}

const Incoming::Place* Incoming::place_offered(const Frame& frame) const {
  const auto& offered = slot_of(frame).offered;
  const bool is_this = offered && offered->first.step == frame.step &&
                       offered->first.bytes == frame.bytes && offered->first.call == frame.call;
  return is_this ? &offered->second : nullptr;
}

void Incoming::end_offer(Channel& channel, Slot& slot) {
  if (!slot.offered) return;
  slot.offered.reset();
  --channel.offers;
}

void Incoming::withdrawn(uint32_t number) {
  if (number >= channels_.size()) return;
  Channel& channel = channels_[number];
  if (channel.withdrawal != Channel::Withdrawal::Asked) return;
  channel.withdrawal = Channel::Withdrawal::None;
  for (Slot& slot : channel.slots) end_offer(channel, slot);
}

void Incoming::peer_has_ended() {
  for (Channel& channel : channels_)
    for (Slot& slot : channel.slots) end_offer(channel, slot);
}

// ----

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
    end_offer(channel, next);
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
