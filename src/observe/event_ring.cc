#include "observe/event_ring.h"

#include <algorithm>
#include <cstring>

namespace niccolite::observe {

void EventRing::write(Slot& slot, uint64_t ticket, const Event& event) {
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

bool EventRing::read(const Slot& slot, Entry& entry) {
  // acquire, here and of the words: pairs with write().
  const uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
  if (sequence == 0 || sequence % 2 != 0) return false;
  std::array<uint64_t, kWords> words{};
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  // relaxed: a word that a later writer stored has brought that one's sequence along.
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return false;
  std::memcpy(static_cast<void*>(&entry.event), words.data(), sizeof entry.event);
  entry.ticket = sequence / 2 - 1;
  return true;
}

std::vector<EventRing::Entry> EventRing::entries() const {
  std::vector<Entry> entries;
  for (size_t slot = 0; slot < size_; ++slot) {
    Entry entry;
    if (read(slots_[slot], entry)) entries.push_back(entry);
  }
  std::ranges::sort(entries, {}, &Entry::ticket);
  return entries;
}

}  // namespace niccolite::observe
