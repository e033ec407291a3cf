// Absences: which processes of a session a rank that leaves waits for no longer, since they cannot
// answer: those of this machine that have been stopped (SIGSTOP, a debugger) for a second, and
// those that were waited for in vain. Of each that it gives up on it prints a line, once. Thread
// safety: any thread; reads /proc, so that no lock is to be held.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/thread_annotations.h"

namespace niccolite::bootstrap {

class Absences {
 public:
  using Clock = std::chrono::steady_clock;
  /// A debugger's user, or a scheduler of jobs, may stop a process for a moment.
  static constexpr std::chrono::seconds kLong{1};
  static constexpr std::chrono::milliseconds kLookInterval{100};

  /// The session, and what it knows of its processes; outlives this.
  struct Outside {
    std::function<uint32_t()> nprocesses;
    std::function<RunState(uint32_t process)> run_state;  // Unknown: of another machine, too
    std::function<std::string(uint32_t process)> describe;
    std::function<Clock::time_point()> now = &Clock::now;
  };
  explicit Absences(Outside outside) : outside_(std::move(outside)) {}

  /// Is it given up on? Looks at all processes, not more often than every kLookInterval, so that
  /// nobody who waits for one after the other waits long for each.
  bool is_absent(uint32_t process) EXCLUDES(mutex_);
  /// An answer of it was waited for in vain.
  void note_silent(uint32_t process) EXCLUDES(mutex_);
  /// Has any been given up on?
  bool are_there() const EXCLUDES(mutex_);

 private:
  using Lines = std::vector<std::string>;  // to be printed once the mutex is let go
  Lines look() REQUIRES(mutex_);
  Lines give_up(uint32_t process, const char* why) REQUIRES(mutex_);

  const Outside outside_;
  mutable std::mutex mutex_;
  Clock::time_point looked_ GUARDED_BY(mutex_){};
  std::map<uint32_t, Clock::time_point> stopped_since_ GUARDED_BY(mutex_);
  std::set<uint32_t> silent_ GUARDED_BY(mutex_), absent_ GUARDED_BY(mutex_),
      told_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::bootstrap
