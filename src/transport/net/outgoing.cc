#include "transport/net/outgoing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "executor/host/ll_words.h"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/ll.h"

namespace niccolite::transport::net {

using executor::FifoShape;

namespace ll = executor::ll;
namespace relay = executor::relay;
namespace tag = executor::call_tag;

Result<std::unique_ptr<Outgoing>> Outgoing::create(gpu::Allocations& allocations, const Key& key,
                                                   const FifoShape& shape, relay::Bell& bell,
                                                   UserMemoryOptions user_memory) {
  return std::make_unique<Outgoing>(
      key, EndShare(TRY(EndMemory::allocate(allocations, shape, /*is_send=*/true))), bell,
      user_memory);
}

Outgoing::Outgoing(const Key& key, EndShare share, relay::Bell& bell,
                   const UserMemoryOptions& user_memory)
    : ProxyEnd(/*is_send=*/true, key, std::move(share), bell, user_memory),
      channels_(shape_.channels),
      copies_(shape_) {
  for (Channel& channel : channels_) channel.slots.resize(shape_.depth);
}

bool Outgoing::has_begun(uint32_t channel, uint64_t step) const {
  // relaxed, both: only compared.
  if (is_by_words()) {
    const uint64_t note =
        std::atomic_ref(share_.ll_note(channel, step)).load(std::memory_order_relaxed);
    return ll::is_of_step(ll::flag_in(note), step);
  }
  const uint64_t tail = std::atomic_ref(share_.far(channel).remote).load(std::memory_order_relaxed);
  return tag::steps_in(tail, step) > step;
}

bool Outgoing::has_all_words(uint32_t channel, uint64_t step) const {
  const uint64_t note =
      std::atomic_ref(share_.ll_note(channel, step)).load(std::memory_order_relaxed);
  const std::byte* const slot = share_.slot(channel, step);
  for (uint64_t byte = 0; byte < bytes_noted(note); byte += ll::kDataBytes)
    if (executor::host::ll_flag(slot, byte) != ll::flag_in(note)) return false;
  return true;
}

bool Outgoing::is_flushed() const {
  if (is_abandoned_.load(std::memory_order_relaxed)) return true;
  for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
    // relaxed: only compared.
    const uint64_t freed =
        std::atomic_ref(share_.own(channel).remote).load(std::memory_order_relaxed);
    if (has_begun(channel, freed) && (!is_by_words() || has_all_words(channel, freed)))
      return false;
  }
  return true;
}

bool Outgoing::waits_for_credit() const {
  for (uint32_t channel = 0; channel < shape_.channels; ++channel)
    if (has_begun(channel, channels_[channel].limit)) return true;
  return false;
}

void Outgoing::ask_for_credit(const std::function<void(const Frame&)>& queue) {
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    if (channel.taken < channel.limit || channel.asked == channel.limit) continue;
    if (!has_begun(number, channel.limit)) continue;
    channel.asked = channel.limit;
    queue({.kind = FrameKind::Want,
           .protocol = static_cast<uint8_t>(key_.protocol),
           .tag = static_cast<uint16_t>(key_.tag),
           .channel = number});
  }
}

void Outgoing::ask_again() {
  for (Channel& channel : channels_) channel.asked = 0;  // 0 is never a limit
}

void Outgoing::grant(uint32_t channel, uint64_t limit) {
  if (channel >= channels_.size()) return;
  channels_[channel].limit = std::max(channels_[channel].limit, limit);
}

void Outgoing::offer(const Frame& place, const Offer& offer) {
  if (place.channel >= channels_.size()) return;
  Channel& channel = channels_[place.channel];
  if (place.step < channel.taken || place.step - channel.taken >= shape_.depth) return;
  channel.slots[place.step & (shape_.depth - 1)].offered.emplace(place, offer);
}

void Outgoing::forget_offers(uint32_t channel) {
  if (channel >= channels_.size()) return;
  for (Slot& slot : channels_[channel].slots) slot.offered.reset();
}

bool Outgoing::collect(PartSize most, const std::function<void(const Part&)>& queue) {
  bool any = false;
  for (uint32_t number = 0; number < shape_.channels; ++number) {
    Channel& channel = channels_[number];
    if (channel.taken >= channel.limit) continue;
    if (is_by_words()) {
      for (; channel.taken < channel.limit; ++channel.taken) {
        const uint64_t words = channel.words;
        const std::optional<Chunk> chunk = next_by_words(number);
        any |= chunk || channel.words > words;  // a look that finds nothing new is one in vain
        if (!chunk) break;
        queue_chunk(number, *chunk, most, queue);
      }
      continue;
    }
    // [arrival] of the proxy: pairs with the kernel's [publish]; slots and notes are there.
    const uint64_t tail =
        std::atomic_ref(share_.far(number).remote).load(std::memory_order_acquire);
    const uint64_t produced = std::min(tag::steps_in(tail, channel.taken), channel.limit);
    for (; channel.taken < produced; ++channel.taken) {
      queue_chunk(number, published_chunk(number), most, queue);
      any = true;
    }
  }
  return any;
}

Outgoing::Chunk Outgoing::published_chunk(uint32_t number) const {
  const uint64_t step = channels_[number].taken;
  const uint64_t note = std::atomic_ref(share_.note(number, step & (shape_.depth - 1)))
                            .load(std::memory_order_relaxed);  // [arrival] acquired it
  const bool is_awaited = (note & relay::kIsAwaited) != 0;
  return {.bytes = std::min(relay::bytes_in(note), shape_.slot_bytes),
          .call = relay::tag_in(note),
          .flags = is_awaited ? kAtOnce : uint16_t{0},
          .data = chunk_of(number, step, note),
          .is_of_user = is_of_user(note)};
}

// Takes each word once, so that a look costs only the words that are new since the last look. A
// kernel cannot have written the slot again, with another size entry and other words, because that
// would need credit that this end has not given.
std::optional<Outgoing::Chunk> Outgoing::next_by_words(uint32_t number) {
  Channel& channel = channels_[number];
  // relaxed: the size entry names its step itself, as every word does.
  const uint64_t note =
      std::atomic_ref(share_.ll_note(number, channel.taken)).load(std::memory_order_relaxed);
  const uint32_t flag = ll::flag_in(note);
  if (!ll::is_of_step(flag, channel.taken)) return std::nullopt;
  const uint32_t bytes = bytes_noted(note);
  const uint64_t words = ll::words_of(bytes);
  std::byte* const data = copies_.of(number, channel.taken);
  channel.words +=
      executor::host::ll_take(share_.slot(number, channel.taken), channel.words, words, flag, data);
  if (channel.words < words) return std::nullopt;
  channel.words = 0;
  return Chunk{.bytes = bytes, .call = ll::tag_in(flag), .flags = 0, .data = data};
}

void Outgoing::queue_chunk(uint32_t number, const Chunk& chunk, PartSize most,
                           const std::function<void(const Part&)>& queue) {
  Channel& channel = channels_[number];
  const auto slot = static_cast<size_t>(channel.taken & (shape_.depth - 1));
  Part part{.frame = {.kind = FrameKind::Part,
                      .protocol = static_cast<uint8_t>(key_.protocol),
                      .tag = static_cast<uint16_t>(key_.tag),
                      .channel = number,
                      .step = channel.taken,
                      .bytes = chunk.bytes,
                      .call = chunk.call,
                      .flags = chunk.flags},
            .from = this};
  if (observer_ != nullptr) observer_->step(step_of(part.frame), ProxyStepState::Taken);
  Slot& of = channel.slots[slot];
  of.data = chunk.data;
  of.bytes = chunk.bytes;
  of.is_of_user = chunk.is_of_user;
  if (chunk.is_of_user && direct() != nullptr)
    of.memory = buffers_->find(chunk.data, chunk.bytes, /*is_send=*/true);
  of.target.reset();
  if (const auto offered = std::exchange(of.offered, std::nullopt);
      offered && offered->first.step == channel.taken && offered->first.bytes == chunk.bytes &&
      offered->first.call == chunk.call)
    of.target = offered->second;
  const bool is_direct = (of.target || most.is_direct) && memory_of(part.frame) != nullptr;
  const uint32_t part_bytes = is_direct ? std::max(chunk.bytes, 1u) : most.bytes;
  do {  // an empty chunk is a step, too
    part.frame.length = std::min(part_bytes, chunk.bytes - part.frame.offset);
    ++of.parts;
    queue(part);
    part.frame.offset += part.frame.length;
  } while (part.frame.offset < chunk.bytes);
}

const std::byte* Outgoing::chunk_of(uint32_t channel, uint64_t step, uint64_t note) const {
  if (!is_of_user(note)) return share_.slot(channel, step);
  const relay::Place& place = places_[size_t{channel} * shape_.depth + (step & (shape_.depth - 1))];
  // relaxed: [arrival] acquired it. (There is no std::atomic_ref of a const object before C++26.)
  return reinterpret_cast<const std::byte*>(
      std::atomic_ref(const_cast<uint64_t&>(place.address)).load(std::memory_order_relaxed));
}

// A buffer that the network does not know, because its registration has ended since the kernel was
// queued, is memory of the same GPU as the slots.
Status Outgoing::load(const Frame& part, std::byte* to) const {
  if (direct() != nullptr) return direct()->load(to, bytes_of(part), part.length);
  std::memcpy(to, bytes_of(part), part.length);
  return {};
}

// The kernel that has named the places writes neither size entries nor slots of steps that are
// published and not freed.
void Outgoing::empty_to_slots(uint32_t number) {
  Channel& channel = channels_[number];
  const uint64_t tail = std::atomic_ref(share_.far(number).remote).load(std::memory_order_acquire);
  const uint64_t produced = tag::steps_in(tail, channel.taken);
  for (uint64_t step = channel.freed; step < produced; ++step) {
    const auto slot = static_cast<size_t>(step & (shape_.depth - 1));
    const std::atomic_ref word(share_.note(number, slot));
    const uint64_t note = word.load(std::memory_order_relaxed);
    if (!is_of_user(note)) continue;
    std::byte* const copy = share_.slot(number, step);
    const uint32_t bytes = std::min(relay::bytes_in(note), shape_.slot_bytes);
    if (direct() == nullptr)
      std::memcpy(copy, chunk_of(number, step, note), bytes);
    else
      direct()->store(copy, chunk_of(number, step, note), bytes).ignore("the operation has failed");
    word.store(note & ~relay::kInUserMemory, std::memory_order_relaxed);
    if (step >= channel.taken) continue;
    channel.slots[slot].data = copy;
    channel.slots[slot].is_of_user = false;
  }
}

void Outgoing::sent(const Frame& frame) {
  Channel& channel = channels_[frame.channel];
  const auto slot_of = [&](uint64_t step) -> Slot& {
    return channel.slots[step & (shape_.depth - 1)];
  };
  --slot_of(frame.step).parts;
  const uint64_t before = channel.freed;
  while (channel.freed < channel.taken && slot_of(channel.freed).parts == 0)
    slot_of(channel.freed++).memory.reset();
  if (channel.freed == before) return;
  if (observer_ != nullptr)
    for (uint64_t step = before; step < channel.freed; ++step)
      observer_->step(step_of(frame.channel, step, slot_of(step).bytes), ProxyStepState::Sent);
  // [consume] of the proxy: the proxy has read the slots. Pairs with the kernel's [credit].
  std::atomic_ref(share_.own(frame.channel).remote).store(channel.freed, std::memory_order_release);
}

}  // namespace niccolite::transport::net
