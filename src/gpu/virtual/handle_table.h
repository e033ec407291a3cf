// HandleTable: from the opaque handles of the C API to live objects. A handle carries a slot and
// the slot's generation and is never dereferenced, so that a stale, foreign or made-up one is an
// error and not a crash.
//
//   bits 63..60  kind, differs between tables
//   bits 59..28  generation of the slot, never 0
//   bits 27..4   slot
//   bits  3..0   zero: no handle equals CUDA's special handles 1 and 2
//
// Thread safety: any thread; objects live as long as somebody holds the shared_ptr, also after
// remove().
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/thread_annotations.h"

namespace niccolite::gpu::virtual_ {

enum class HandleKind : uint64_t {
  Stream = 1,
  Event,
  Graph,
  Executable,
  UserObject,
  Allocation,
  GraphNode
};

template <typename T, HandleKind kKind>
class HandleTable {
 public:
  void* insert(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    uint64_t slot = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot].object = std::move(object);
    return encode(slot, slots_[slot].generation);
  }

  /// Null when `handle` names no live object of this table.
  std::shared_ptr<T> find(const void* handle) const {
    std::shared_lock lock(mutex_);
    const Slot* slot = lookup(handle);
    return slot ? slot->object : nullptr;
  }

  /// The object, which the table has forgotten; null as for find().
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    Slot* slot = const_cast<Slot*>(lookup(handle));
    if (slot == nullptr) return nullptr;
    if (++slot->generation == 0) slot->generation = 1;
    free_.push_back(static_cast<uint64_t>(slot - slots_.data()));
    return std::move(slot->object);
  }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    std::shared_lock lock(mutex_);
    for (const Slot& slot : slots_)
      if (slot.object) visit(*slot.object);
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;
    uint32_t generation = 1;
  };
  static constexpr uint64_t kSlotMask = (uint64_t{1} << 24) - 1;

  static void* encode(uint64_t slot, uint32_t generation) {
    const uint64_t bits =
        static_cast<uint64_t>(kKind) << 60 | uint64_t{generation} << 28 | (slot & kSlotMask) << 4;
    return reinterpret_cast<void*>(bits);
  }

  const Slot* lookup(const void* handle) const REQUIRES(mutex_) {
    const uint64_t slot = reinterpret_cast<uint64_t>(handle) >> 4 & kSlotMask;
    if (slot >= slots_.size() || slots_[slot].object == nullptr) return nullptr;
    return encode(slot, slots_[slot].generation) == handle ? &slots_[slot] : nullptr;
  }

  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::vector<uint64_t> free_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::gpu::virtual_
