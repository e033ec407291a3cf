// ExclusiveUse: a mutex whose holder may be waited for with a deadline. (std::timed_mutex would be
// that, but locks in a way that the ThreadSanitizer of g++ 12 does not see.) Thread safety: any
// thread.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"
#include "base/wait.h"

namespace niccolite::comm {

class ExclusiveUse {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    while (taken_) free_.wait(lock);
    taken_ = true;
  }
  /// False when it was not free before the deadline.
  bool lock_until(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    while (taken_)
      if (free_.wait_until(lock, deadline.at()) == std::cv_status::timeout && taken_) return false;
    taken_ = true;
    return true;
  }
  void unlock() {
    {
      std::lock_guard lock(mutex_);
      taken_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ GUARDED_BY(mutex_) = false;
};

}  // namespace niccolite::comm
