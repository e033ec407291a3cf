// Deadline and Abort: the two ways out of every wait.
// Thread safety: Abort may be raised and tested from any thread; Deadline is a value.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "base/status.h"
#include "base/thread_annotations.h"

namespace niccolite {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline after(std::chrono::milliseconds time) { return Deadline(Clock::now() + time); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }
  /// Milliseconds left for poll(): 0 when passed, at most `most`.
  int poll_milliseconds(int most) const;

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

/// The end of a communicator, or of a call: raised once with a reason; the first reason stays.
class Abort {
 public:
  /// Raises the abort and calls every listener, each once, on this thread with no lock held. Later
  /// calls do nothing.
  void raise(Status reason) EXCLUDES(mutex_);

  bool raised() const {
    // [acquire] pairs with the release in raise(): who sees it raised sees the reason.
    return raised_.load(std::memory_order_acquire);
  }
  /// A copy of the reason; fine when not raised.
  Status reason() const EXCLUDES(mutex_);

  /// Calls `listener` when the abort is raised, or now if it has been. Returns an id for forget().
  int listen(std::function<void()> listener) EXCLUDES(mutex_);
  /// After it returns the listener is not running and will not run. Not to be called from a
  /// listener.
  void forget(int id) EXCLUDES(mutex_);

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  std::mutex calling_;  // held while listeners run: forget() waits for them
  Status reason_ GUARDED_BY(mutex_);
  std::map<int, std::function<void()>> listeners_ GUARDED_BY(mutex_);
  int next_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite
