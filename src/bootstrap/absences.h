// Absences: the processes of a session for which a leaving rank no longer waits, because they
// cannot answer: processes of this machine that have been stopped (SIGSTOP, a debugger) for a
// second, and processes that did not answer in time. It prints one line for each process that it
// gives up. Thread safety: any thread. is_absent() may read /proc and call Outside, and
// note_silent() may call it, so the session's lock must not be held there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/process.h"
#include "base/thread_annotations.h"

namespace niccolite::bootstrap {

class Absences {
 public:
  using Clock = std::chrono::steady_clock;
  /// A debugger's user, or a scheduler of jobs, may stop a process for a moment.
  static constexpr std::chrono::seconds kLong{1};
  static constexpr std::chrono::milliseconds kLookInterval{100};
  /// Limit of the processes that are looked at in each kLookInterval. Each look reads a file of
  /// /proc; otherwise a thousand processes that leave each other at once would read a million files
  /// ten times a second.
  static constexpr size_t kMostLooks = 16;

  /// The session's knowledge of its processes; outlives this object.
  struct Outside {
    std::function<bool(uint32_t process)> is_visible;  // can it be looked up, and has it not left?
    std::function<RunState(uint32_t process)> run_state;
    std::function<std::string(uint32_t process)> describe;
    std::function<Clock::time_point()> now = &Clock::now;
  };
  explicit Absences(Outside outside) : outside_(std::move(outside)) {}

  /// True if the process is given up. Looks at the process if its turn has come. The caller must
  /// ask in each kLookInterval about every process for which it still waits, and not only about the
  /// next one. Otherwise a caller that waits for one process after the other would wait long for
  /// each.
  bool is_absent(uint32_t process) EXCLUDES(mutex_);
  /// The process did not answer in time.
  void note_silent(uint32_t process) EXCLUDES(mutex_);
  /// Has any been given up on?
  bool are_there() const EXCLUDES(mutex_);

 private:
  /// A process that somebody waits for.
  struct Awaited {
    Clock::time_point asked, looked;
    std::optional<Clock::time_point> stopped_since;
  };
  bool is_turn_of(uint32_t process, Clock::time_point now) REQUIRES(mutex_);
  /// True, here and below: it has not been told yet that the process is given up on.
  bool note(uint32_t process, RunState state, Clock::time_point now) REQUIRES(mutex_);
  bool give_up(uint32_t process) REQUIRES(mutex_);
  void tell(uint32_t process, const char* why) EXCLUDES(mutex_);

  const Outside outside_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Awaited> awaited_ GUARDED_BY(mutex_);
  Clock::time_point interval_began_ GUARDED_BY(mutex_);
  size_t looks_ GUARDED_BY(mutex_) = 0;  // in this interval
  std::set<uint32_t> silent_ GUARDED_BY(mutex_), absent_ GUARDED_BY(mutex_),
      told_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::bootstrap
