#include "executor/host/residency.h"

#include <map>
#include <mutex>

#include "base/parameters.h"

namespace niccolite::executor::host {

Residency* Residency::of(int device) {
  const int64_t most = parameters::virtual_sms();
  if (most == 0) return nullptr;
  // Never destroyed: operations may end after main().
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, Residency>;
  std::lock_guard lock(*mutex);
  return &devices->try_emplace(device, most).first->second;
}

bool Residency::enter(int64_t ctas) {
  const int64_t wanted = bounded(ctas);
  // relaxed: a count; operations order their data by their connections.
  int64_t free = free_.load(std::memory_order_relaxed);
  while (free >= wanted)
    if (free_.compare_exchange_weak(free, free - wanted, std::memory_order_relaxed)) return true;
  return false;
}

void Residency::leave(int64_t ctas) { free_.fetch_add(bounded(ctas), std::memory_order_relaxed); }

}  // namespace niccolite::executor::host
