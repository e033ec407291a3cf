// Pulse: when something last moved between this rank and a rank on another machine. The proxy's
// threads write it as they work. The search for the reason of a standstill reads it, also when the
// proxy's threads are stuck. Thread safety: carries() and waits_on() by the sender's thread, all
// else by any.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "base/thread_annotations.h"
#include "transport/network_state.h"
#include "wire/event_loop.h"

namespace niccolite::transport::net {

class Pulse {
 public:
  using Clock = wire::EventLoop::Clock;

  /// `parts` and `bytes` are on their way. `since`: since then nothing has been acknowledged, or a
  /// question has not been answered; none: nothing is on its way. `has_another_way`: Traffic's.
  void carries(uint64_t parts, uint64_t bytes, std::optional<Clock::time_point> since,
               bool has_another_way = false);
  /// The connection that carries() is about.
  void waits_on(std::string from, std::string to) EXCLUDES(mutex_);
  /// The peer's proxy has acknowledged something.
  void acknowledged(Clock::time_point now) {
    acknowledged_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  /// Ticks of the clock when bytes last came; 0: never.
  std::atomic<Clock::rep>& heard() { return heard_; }

  Traffic traffic(int peer) const EXCLUDES(mutex_);

 private:
  // relaxed throughout: the numbers may be of two moments, which are microseconds apart.
  std::atomic<Clock::rep> since_{0};
  std::atomic<uint64_t> parts_{0}, bytes_{0};
  std::atomic<bool> has_another_way_{false};
  std::atomic<Clock::rep> acknowledged_{0}, heard_{0};
  mutable std::mutex mutex_;
  std::string from_ GUARDED_BY(mutex_), to_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::transport::net
