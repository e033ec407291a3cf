// Service: the thread on which a session runs code of its users: handlers of requests (a handler
// for a rank of the same process may run on the asking rank's thread instead) and callbacks about
// lost peers. They may take milliseconds, and the event loop must not wait for them. The thread
// starts with the first task. Thread safety: any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "base/thread.h"
#include "base/thread_annotations.h"

namespace niccolite::bootstrap {

class Service {
 public:
  ~Service() { stop(); }
  void post(std::function<void()> task) EXCLUDES(mutex_);
  /// Waits for the task under way and drops the others.
  void stop() EXCLUDES(mutex_);
  bool is_current() EXCLUDES(mutex_);

 private:
  void run() EXCLUDES(mutex_);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  Thread thread_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::bootstrap
