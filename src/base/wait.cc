#include "base/wait.h"

#include <algorithm>

namespace niccolite {

int Deadline::poll_milliseconds(int most) const {
  if (at_ == Clock::time_point::max()) return most;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, most));
}

void Abort::raise(Status reason) {
  std::lock_guard calling(calling_);
  std::map<int, std::function<void()>> listeners;
  {
    std::lock_guard lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return;  // relaxed: only written under mutex_
    reason_ = std::move(reason);
    // [release] the reason, to raised().
    raised_.store(true, std::memory_order_release);
    listeners.swap(listeners_);
  }
  for (auto& [id, listener] : listeners) listener();
}

Status Abort::reason() const {
  std::lock_guard lock(mutex_);
  return reason_.copy();
}

int Abort::listen(std::function<void()> listener) {
  {
    std::lock_guard lock(mutex_);
    if (!raised_.load(std::memory_order_relaxed)) {  // relaxed: only written under mutex_
      listeners_.emplace(next_id_, std::move(listener));
      return next_id_++;
    }
  }
  listener();
  return -1;
}

void Abort::forget(int id) {
  std::lock_guard calling(calling_);
  std::lock_guard lock(mutex_);
  listeners_.erase(id);
}

}  // namespace niccolite
