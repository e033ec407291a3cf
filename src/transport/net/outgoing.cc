#include "transport/net/outgoing.h"

#include <algorithm>
#include <cstring>

#include "executor/protocol/call_tag.h"

namespace niccolite::transport::net {

using executor::FifoShape;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

Result<std::unique_ptr<Outgoing>> Outgoing::create(gpu::Machine& machine, const Key& key,
                                                   const FifoShape& shape, relay::Bell& bell,
                                                   UserMemoryOptions user_memory) {
  return std::make_unique<Outgoing>(
      key, EndShare(TRY(EndMemory::allocate(machine, shape, /*is_send=*/true))), bell, user_memory);
}

Outgoing::Outgoing(const Key& key, EndShare share, relay::Bell& bell,
                   const UserMemoryOptions& user_memory)
    : ProxyEnd(/*is_send=*/true, key, std::move(share), bell, user_memory),
      channels_(shape_.channels) {
  for (Channel& channel : channels_) {
    channel.parts.resize(shape_.depth);
    channel.bytes.resize(shape_.depth);
    channel.chunks.resize(shape_.depth);
  }
}

bool Outgoing::is_flushed() const {
  if (is_abandoned_.load(std::memory_order_relaxed)) return true;
  for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
    // relaxed: only compared.
    const uint64_t freed =
        std::atomic_ref(share_.own(channel).remote).load(std::memory_order_relaxed);
    const uint64_t tail =
        std::atomic_ref(share_.far(channel).remote).load(std::memory_order_relaxed);
    if (tag::steps_in(tail, freed) != freed) return false;
  }
  return true;
}

bool Outgoing::waits_for_credit() const {
  for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
    // relaxed: only compared.
    const uint64_t tail =
        std::atomic_ref(share_.far(channel).remote).load(std::memory_order_relaxed);
    if (tag::steps_in(tail, channels_[channel].limit) > channels_[channel].limit) return true;
  }
  return false;
}

void Outgoing::ask_for_credit(const std::function<void(const Frame&)>& queue) {
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    if (channel.taken < channel.limit || channel.asked == channel.limit) continue;
    // relaxed: only compared.
    const uint64_t tail =
        std::atomic_ref(share_.far(number).remote).load(std::memory_order_relaxed);
    if (tag::steps_in(tail, channel.limit) <= channel.limit) continue;
    channel.asked = channel.limit;
    queue({.kind = FrameKind::Want,
           .protocol = static_cast<uint8_t>(key_.protocol),
           .tag = static_cast<uint16_t>(key_.tag),
           .channel = number,
           .step = channel.limit});
  }
}

void Outgoing::ask_again() {
  for (Channel& channel : channels_) channel.asked = 0;  // of which no credit is ever the limit
}

void Outgoing::grant(uint32_t channel, uint64_t limit) {
  if (channel >= channels_.size()) return;
  channels_[channel].limit = std::max(channels_[channel].limit, limit);
}

bool Outgoing::collect(uint32_t part_bytes, const std::function<void(const Part&)>& queue) {
  bool any = false;
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    if (channel.taken >= channel.limit) continue;
    // [arrival] of the proxy: pairs with the kernel's [publish]; slots and notes are there.
    const uint64_t tail =
        std::atomic_ref(share_.far(number).remote).load(std::memory_order_acquire);
    const uint64_t produced = std::min(tag::steps_in(tail, channel.taken), channel.limit);
    for (; channel.taken < produced; ++channel.taken) {
      const auto slot = static_cast<size_t>(channel.taken & (shape_.depth - 1));
      const uint64_t note = std::atomic_ref(share_.note(number, slot))
                                .load(std::memory_order_relaxed);  // [arrival] acquired it
      const uint32_t bytes = std::min(relay::bytes_in(note), shape_.slot_bytes);
      Part part{.frame = {.kind = FrameKind::Part,
                          .protocol = static_cast<uint8_t>(key_.protocol),
                          .tag = static_cast<uint16_t>(key_.tag),
                          .channel = number,
                          .step = channel.taken,
                          .bytes = bytes,
                          .call = relay::tag_in(note)},
                .from = this};
      if (observer_ != nullptr) observer_->step(step_of(part.frame), ProxyStepState::Taken);
      channel.chunks[slot] = chunk_of(number, channel.taken, note);
      if ((note & relay::kIsAwaited) != 0) part.frame.flags = kAtOnce;
      do {  // an empty chunk is a step, too
        part.frame.length = std::min(part_bytes, bytes - part.frame.offset);
        ++channel.parts[slot];
        channel.bytes[slot] = bytes;
        queue(part);
        part.frame.offset += part.frame.length;
      } while (part.frame.offset < bytes);
      any = true;
    }
  }
  return any;
}

const std::byte* Outgoing::chunk_of(uint32_t channel, uint64_t step, uint64_t note) {
  if (loop_ == nullptr || (note & relay::kInUserMemory) == 0) return share_.slot(channel, step);
  relay::Place& place = places_[size_t{channel} * shape_.depth + (step & (shape_.depth - 1))];
  // relaxed: [arrival] acquired it.
  return reinterpret_cast<const std::byte*>(
      std::atomic_ref(place.address).load(std::memory_order_relaxed));
}

bool Outgoing::let_go(uint32_t channel) {
  return loop_ == nullptr || loop_->try_borrow([&] { empty_to_slots(channel); });
}

// The kernel that has named the places does not run: notes and slots are nobody's but the loop's.
void Outgoing::empty_to_slots(uint32_t number) {
  Channel& channel = channels_[number];
  const uint64_t tail = std::atomic_ref(share_.far(number).remote).load(std::memory_order_acquire);
  const uint64_t produced = tag::steps_in(tail, channel.taken);
  for (uint64_t step = channel.freed; step < produced; ++step) {
    const auto slot = static_cast<size_t>(step & (shape_.depth - 1));
    const std::atomic_ref word(share_.note(number, slot));
    const uint64_t note = word.load(std::memory_order_relaxed);
    if ((note & relay::kInUserMemory) == 0) continue;
    std::byte* const copy = share_.slot(number, step);
    std::memcpy(copy, chunk_of(number, step, note),
                std::min(relay::bytes_in(note), shape_.slot_bytes));
    word.store(note & ~relay::kInUserMemory, std::memory_order_relaxed);
    if (step < channel.taken) channel.chunks[slot] = copy;
  }
}

void Outgoing::sent(const Frame& frame) {
  Channel& channel = channels_[frame.channel];
  const auto slot_of = [&](uint64_t step) {
    return static_cast<size_t>(step & (shape_.depth - 1));
  };
  --channel.parts[slot_of(frame.step)];
  const uint64_t before = channel.freed;
  while (channel.freed < channel.taken && channel.parts[slot_of(channel.freed)] == 0)
    ++channel.freed;
  if (channel.freed == before) return;
  if (observer_ != nullptr)
    for (uint64_t step = before; step < channel.freed; ++step)
      observer_->step(step_of(frame.channel, step, channel.bytes[slot_of(step)]),
                      ProxyStepState::Sent);
  // [consume] of the proxy: what was read has been read. Pairs with the kernel's [credit].
  std::atomic_ref(share_.own(frame.channel).remote).store(channel.freed, std::memory_order_release);
}

}  // namespace niccolite::transport::net
