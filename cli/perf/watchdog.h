// Watchdog: a thread that ends the process when the run cannot go on: another rank failed, a
// communicator reports an asynchronous error, or nothing has moved for the time given. The ranks'
// threads may then be stuck inside the library or the driver, so nothing is waited for: the report
// is written and the process exits.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "base/status.h"
#include "cli/perf/rank.h"
#include "cli/perf/team.h"

namespace niccolite::perf {

class Watchdog {
 public:
  /// `end_process` must not return. `team` and `end_process` outlive the watchdog. timeout_seconds
  /// 0: no limit.
  Watchdog(Team& team, int timeout_seconds, std::function<void(Status)> end_process);
  ~Watchdog();

  /// Looks at the ranks' communicators from now on; they must stay as they are until unwatch() has
  /// returned.
  void watch(std::span<const Rank> ranks);
  void unwatch() { watch({}); }

 private:
  void run();
  Status look();

  Team& team_;
  const int timeout_seconds_;
  const std::function<void(Status)> end_process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const Rank> ranks_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  std::thread thread_;           // last: starts when the rest exists
};

}  // namespace niccolite::perf
