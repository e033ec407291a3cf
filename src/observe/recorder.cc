#include "observe/recorder.h"

#include <algorithm>
#include <cstring>

namespace niccolite::observe {

static_assert(sizeof(Event) <= 7 * sizeof(uint64_t));

Recorder::Recorder() : slots_(std::make_unique<Slot[]>(kKept)) { Clock::begin(); }

void Recorder::write(Slot& slot, uint64_t ticket, const Event& event) {
  uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  // A writer that is a whole ring behind, or ahead, of another one leaves the slot to it.
  if (before % 2 != 0 || before > 2 * ticket) return;
  if (!slot.sequence.compare_exchange_strong(before, 2 * ticket + 1, std::memory_order_relaxed))
    return;
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), &event, sizeof event);
  // [release] pairs with read(): who sees one of these words sees the odd sequence, too.
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  // [release] publishes the words.
  slot.sequence.store(2 * ticket + 2, std::memory_order_release);
}

bool Recorder::read(const Slot& slot, uint64_t ticket, Event& event) {
  // acquire, here and of the words: pairs with write().
  if (slot.sequence.load(std::memory_order_acquire) != 2 * ticket + 2) return false;
  std::array<uint64_t, kWords> words{};
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  // relaxed: a word that a later writer stored has brought that one's sequence along.
  if (slot.sequence.load(std::memory_order_relaxed) != 2 * ticket + 2) return false;
  std::memcpy(static_cast<void*>(&event), words.data(), sizeof event);
  return true;
}

std::vector<Event> Recorder::events() const {
  const uint64_t end = next_.load(std::memory_order_acquire);
  std::vector<Event> events;
  for (uint64_t ticket = end - std::min<uint64_t>(end, kKept); ticket < end; ++ticket) {
    Event event;
    if (read(slots_[ticket % kKept], ticket, event)) events.push_back(event);
  }
  return events;
}

}  // namespace niccolite::observe
