// ExclusiveUse: a mutex whose holder may be waited for with a deadline, and which costs two atomic
// operations while nobody waits. (std::timed_mutex would be the first, but locks in a way that the
// ThreadSanitizer of g++ 12 does not see.) Thread safety: any thread.
//
//   Free -- lock() --> Taken -- lock() of another --> Awaited     unlock() of an Awaited one wakes
//
// No wake-up is lost: who waits makes it Awaited with the mutex held until it sleeps, and unlock()
// takes the mutex before it wakes. Who has waited leaves it Awaited when it takes it, since others
// may wait still; the worst that comes of it is a wake-up of nobody.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/wait.h"

namespace niccolite::comm {

class ExclusiveUse {
 public:
  void lock() {
    if (take_free()) return;
    std::unique_lock lock(mutex_);
    while (!take_awaited()) free_.wait(lock);
  }
  bool try_lock() { return take_free(); }
  /// False when it was not free before the deadline.
  bool lock_until(const Deadline& deadline) {
    if (take_free()) return true;
    std::unique_lock lock(mutex_);
    while (!take_awaited())
      if (free_.wait_until(lock, deadline.at()) == std::cv_status::timeout) return take_awaited();
    return true;
  }
  void unlock() {
    // [release] all that was done meanwhile, to whoever takes it next.
    if (state_.exchange(kFree, std::memory_order_acq_rel) != kAwaited) return;
    { std::lock_guard lock(mutex_); }  // who has seen it taken sleeps by now
    free_.notify_one();
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kAwaited = 2;

  // acquire, both: pair with unlock().
  bool take_free() {
    uint32_t seen = kFree;
    return state_.compare_exchange_strong(seen, kTaken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  bool take_awaited() { return state_.exchange(kAwaited, std::memory_order_acq_rel) == kFree; }

  std::atomic<uint32_t> state_{kFree};
  std::mutex mutex_;  // used by waiting threads
  std::condition_variable free_;
};

}  // namespace niccolite::comm
