// Watchdog: the thread that looks after all communicators of the process, some twenty times a
// second. It starts with the first watch and ends with its last owner. It never touches a GPU.
// Thread safety: any thread.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "diagnosis/watch.h"

namespace niccolite::diagnosis {

class Watchdog {
 public:
  /// The process's, started if need be.
  static Result<std::shared_ptr<Watchdog>> instance();
  ~Watchdog();

  /// `watch` is looked at until remove(), which waits while it is.
  void add(Watch& watch) EXCLUDES(mutex_);
  void remove(Watch& watch) EXCLUDES(mutex_);

  /// Since when the process has run without being held up for long: stopped, or without a core.
  /// The beginning of time: always, as far as is known.
  static Watch::Time awake_since();

  /// For Watch::Hooks::silences.
  std::shared_ptr<Silences> silences() const { return silences_; }
  /// Implements Watch::Hooks::find_holder.
  std::optional<Hold> find_holder(const Watch& held, int device, uint64_t stream) EXCLUDES(mutex_);

 private:
  Watchdog();
  void run() EXCLUDES(mutex_);

  const pid_t process_;
  const std::shared_ptr<Silences> silences_ = std::make_shared<Silences>();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Watch*> watches_ GUARDED_BY(mutex_);
  const Watch* current_ GUARDED_BY(mutex_) = nullptr;  // being looked at
  Thread thread_;                                      // last: joined first
};

}  // namespace niccolite::diagnosis
