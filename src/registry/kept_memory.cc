#include "registry/kept_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/log.h"
#include "registry/housekeeper.h"

namespace niccolite::registry {
namespace {

/// Memory that was unused for this many rounds gives way to other memory.
constexpr uint64_t kIdleRounds = std::chrono::seconds(2) / Tended::kUsualInterval;
/// A device's free memory is scarce below this part of all its memory.
constexpr size_t kScarcePart = 16;

}  // namespace

KeptMemory& KeptMemory::of(gpu::Allocations& allocations, int device) {
  static std::mutex mutex;
  static auto* const all = new std::unordered_map<int, std::unique_ptr<KeptMemory>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<KeptMemory>& found = (*all)[device];
  if (found == nullptr) found = std::make_unique<KeptMemory>(allocations, device);
  return *found;
}

bool KeptMemory::begins(uint64_t round) {
  std::lock_guard lock(mutex_);
  return std::exchange(begun_, round) != round;
}

void KeptMemory::measure() {
  const Result<gpu::DeviceMemory> memory = allocations_.device_memory(device_);
  if (!memory.is_ok()) LOG(Info, Reg, "{}", memory.status().message());
  std::lock_guard lock(mutex_);
  free_ = memory.is_ok() ? memory.value().free_bytes : 0;
  total_ = memory.is_ok() ? memory.value().total_bytes : 0;
}

bool KeptMemory::add(uint64_t id, size_t bytes, size_t most) {
  std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end()) {
    ++found->second.keepers;
    return true;
  }
  if (bytes > most || kept_ > most - bytes) return false;
  if (kept_ + bytes > free_) {
    wanted_ = std::max(wanted_, bytes);
    return false;
  }
  kept_ += bytes;
  entries_.emplace(
      id, Entry{.bytes = bytes, .keepers = 1, .last_use = Housekeeper::instance().round()});
  return true;
}

void KeptMemory::remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || --found->second.keepers > 0) return;
  kept_ -= found->second.bytes;
  entries_.erase(found);
}

void KeptMemory::note_use(uint64_t id, uint64_t round) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  found->second.last_use = std::max(found->second.last_use, round);
}

void KeptMemory::choose(uint64_t round) {
  std::lock_guard lock(mutex_);
  if (std::exchange(chosen_, round) == round) return;
  if (kept_ > free_) choose_oldest(kept_ - free_, round);
  const size_t wanted = std::exchange(wanted_, 0);
  if (wanted > 0 && kept_ + wanted > free_ && round > kIdleRounds)
    choose_oldest(kept_ + wanted - free_, round - kIdleRounds);
}

// Chooses the longest unused memory, `bytes` of it, among memory whose last use was in round
// `newest` or before.
void KeptMemory::choose_oldest(size_t bytes, uint64_t newest) {
  std::vector<Entry*> by_age;
  for (auto& [id, entry] : entries_)
    if (entry.last_use <= newest) by_age.push_back(&entry);
  std::ranges::sort(by_age, {}, &Entry::last_use);
  size_t chosen = 0;
  for (Entry* entry : by_age) {
    if (chosen >= bytes) return;
    entry->has_to_go = true;
    chosen += entry->bytes;
  }
}

bool KeptMemory::has_to_go(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found != entries_.end() && found->second.has_to_go;
}

bool KeptMemory::is_scarce() const {
  std::lock_guard lock(mutex_);
  return !entries_.empty() && free_ < std::max(kept_, total_ / kScarcePart);
}

size_t KeptMemory::bytes() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace niccolite::registry
