// EventRing: the last records of some kinds, in slots of fixed size that any thread writes without
// a lock. Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "observe/event.h"

namespace niccolite::observe {

class EventRing {
 public:
  explicit EventRing(size_t slots) : size_(slots), slots_(std::make_unique<Slot[]>(slots)) {}

  size_t size() const { return size_; }
  /// `ticket` grows from record to record; of two in one slot the newer one stays.
  void write(size_t slot, uint64_t ticket, const Event& event) {
    write(slots_[slot], ticket, event);
  }
  /// Adds an event with the next ticket, for writers that need no order with other rings.
  void add(const Event& event) {
    // relaxed: the slot's own sequence publishes its content.
    const uint64_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
    write(ticket % size_, ticket, event);
  }

  struct Entry {
    uint64_t ticket = 0;
    Event event;
  };
  /// Returns the entries by ticket. Entries that are being written meanwhile may be absent.
  std::vector<Entry> entries() const;
  /// False: nothing is there, or it is being written.
  bool read(size_t slot, Entry& entry) const { return read(slots_[slot], entry); }

 private:
  static constexpr size_t kWords = 7;
  static_assert(sizeof(Event) <= kWords * sizeof(uint64_t));
  // 2 * ticket + 2 when the event of this ticket is there; odd while one is being written.
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  static void write(Slot& slot, uint64_t ticket, const Event& event);
  static bool read(const Slot& slot, Entry& entry);

  const size_t size_;
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> next_{0};
};

}  // namespace niccolite::observe
