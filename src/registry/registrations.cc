#include "registry/registrations.h"

#include <algorithm>
#include <atomic>

namespace niccolite::registry {
namespace {

constexpr uintptr_t kPage = 4096;

// A number and not an address, so that a handle that has ended is never one that lives, of this
// communicator or of another.
Registrations::Handle new_handle() {
  static std::atomic<uintptr_t> next{1};
  // relaxed: only the number matters.
  return reinterpret_cast<void*>(next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

Registrations::Range Registrations::pages_of(const void* pointer, size_t bytes, uint64_t memory) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  return {begin / kPage * kPage, (begin + bytes + kPage - 1) / kPage * kPage, memory};
}

// Returns the registration that holds all of `range`. Only registrations with the nearest beginning
// before it are looked at. One that begins further away and holds the range is not found, and the
// range gets a registration of its own.
Registrations::Handle Registrations::find(const Range& range) const {
  const auto after = by_begin_.upper_bound(range.begin);
  if (after == by_begin_.begin()) return nullptr;
  const auto [first, last] = by_begin_.equal_range(std::prev(after)->first);
  for (auto candidate = first; candidate != last; ++candidate)
    if (entries_.at(candidate->second).range.holds(range)) return candidate->second;
  return nullptr;
}

Result<Registrations::Handle> Registrations::add(const void* pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0) return Handle{nullptr};
  const gpu::PointerInfo memory = TRY(allocations_.pointer_info(pointer));
  if (memory.kind == gpu::PointerKind::Unknown) return Handle{nullptr};
  const Range range = pages_of(pointer, bytes, memory.id);
  std::lock_guard lock(mutex_);
  Handle handle = find(range);
  if (handle == nullptr) {
    handle = new_handle();
    entries_.emplace(handle, Entry{range, 0});
    by_begin_.emplace(range.begin, handle);
  }
  ++entries_.at(handle).count;
  return handle;
}

Status Registrations::remove(Handle handle) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end())
    return Status::invalid_usage(
        "handle {} is not a registration of this communicator: it was deregistered as often as it "
        "was registered, or belongs to another communicator",
        handle);
  if (--found->second.count > 0) return {};
  const auto [first, last] = by_begin_.equal_range(found->second.range.begin);
  for (auto place = first; place != last; ++place) {
    if (place->second != handle) continue;
    by_begin_.erase(place);
    break;
  }
  entries_.erase(found);
  return {};
}

bool Registrations::covers(const void* pointer, size_t bytes) const {
  const Result<gpu::PointerInfo> info = allocations_.pointer_info(pointer);
  if (!info.is_ok() || info.value().kind == gpu::PointerKind::Unknown) return false;
  const Range range = pages_of(pointer, bytes, info.value().id);
  std::lock_guard lock(mutex_);
  return find(range) != nullptr;
}

bool Registrations::touches(const void* pointer, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const auto& entry) {
    return entry.second.range.begin < begin + bytes && begin < entry.second.range.end;
  });
}

size_t Registrations::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace niccolite::registry
