// Housekeeper: a thread of the process for calls of the driver that may wait for kernels, so that
// callers and peers do not wait for them. The process has two: instance() gives back memory of
// other processes, and looks for buffers whose memory their user has freed; mapper() maps memory
// that peers have exported. Each exists while there is work. Thread safety: any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"

namespace niccolite::registry {

/// Something to look after, now and then.
class Tended {
 public:
  /// Time until the next sweep, if nothing is urgent: freed memory is given back within this time.
  static constexpr std::chrono::milliseconds kUsualInterval{50};

  virtual ~Tended() = default;
  /// On the housekeeper's thread. Returns after how long it is to be called again; nothing: not
  /// until the next tend().
  virtual std::optional<std::chrono::milliseconds> sweep() = 0;
};

class Housekeeper {
 public:
  /// Never destroyed: communicators may outlive main().
  static Housekeeper& instance();
  /// A peer may wait for a mapping, which therefore does not wait behind memory that is given back.
  static Housekeeper& mapper();

  /// Calls `errand` on the thread, in the order of these calls; here, if that cannot be started.
  void run(std::function<void()> errand) EXCLUDES(mutex_);
  /// Lets go of `object` on the thread; never, if that cannot be started.
  void release(std::shared_ptr<void> object) EXCLUDES(mutex_);
  /// Sweeps from now on, as long as it lives and has something to look after.
  void tend(const std::shared_ptr<Tended>& tended) EXCLUDES(mutex_);
  /// Counts sweeps: a clock that costs a load to read. It stands still while nothing is tended.
  // relaxed: nothing is published with it.
  uint64_t round() const { return round_.load(std::memory_order_relaxed); }

 private:
  explicit Housekeeper(const char* name) : name_(name) {}
  /// Is the thread there?
  bool start() REQUIRES(mutex_);
  void serve() EXCLUDES(mutex_);
  /// Returns after how long to sweep again.
  std::chrono::milliseconds sweep_all(std::unique_lock<std::mutex>& lock);

  const char* const name_;  // of the thread
  std::atomic<uint64_t> round_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ GUARDED_BY(mutex_) = false;
  pid_t process_ GUARDED_BY(mutex_) = 0;  // that has the thread: not a child made by fork()
  std::vector<std::function<void()>> errands_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Tended>> tended_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::registry
