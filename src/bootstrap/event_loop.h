// EventLoop: waits for sockets (epoll), timers and tasks posted by other threads, and runs their
// callbacks one after the other on the thread that called run(). What hangs on a loop is touched by
// that thread only. Thread safety: post() and stop() from any thread; the rest on the loop's
// thread, or before run() and after it ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/thread_annotations.h"

struct epoll_event;

namespace niccolite::bootstrap {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;  // of a watch or a timer; never used twice

  static Result<std::unique_ptr<EventLoop>> create();
  ~EventLoop();

  /// Runs callbacks until stop(). Tasks posted before stop() are run.
  void run();
  void stop();
  void post(std::function<void()> task) EXCLUDES(mutex_);

  /// For what no descriptor tells: called before each wait, with what may be waited at most as its
  /// result (Clock::duration::max(): until something happens).
  void set_poller(std::function<Clock::duration()> poll) { poll_ = std::move(poll); }

  /// Calls `ready` with the events (EPOLLIN, ...) of `fd` until forget(). The caller keeps `fd`
  /// open until then.
  Result<Id> watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(Id watch, uint32_t events);
  void forget(Id watch);

  Id at(Clock::time_point time, std::function<void()> task);
  Id after(Clock::duration time, std::function<void()> task) {
    return at(Clock::now() + time, std::move(task));
  }
  void cancel(Id timer);

 private:
  struct Watch {
    int fd;
    std::function<void(uint32_t)> ready;
  };

  EventLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  Clock::duration time_to_next_timer() const;
  int wait(std::span<epoll_event> events, Clock::duration limit) const;
  void run_timers();
  void run_tasks() EXCLUDES(mutex_);

  Fd epoll_;
  Fd wake_;  // eventfd, id 0
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool stopping_ = false;
  std::function<Clock::duration()> poll_;
  Id next_id_ = 1;
  std::map<Id, std::shared_ptr<Watch>> watches_;
  std::map<std::pair<Clock::time_point, Id>, std::function<void()>> timers_;
  std::map<Id, Clock::time_point> timer_times_;
};

}  // namespace niccolite::bootstrap
