// EventLoop: waits for sockets (epoll), timers and tasks posted by other threads, and runs their
// callbacks one after the other on the thread that called run(). Only that thread touches the
// objects that are attached to a loop, or a thread that borrows the loop: while the loop's own
// thread waits, another thread may do its work and serve the shared watches. Thread safety: post(),
// stop() and the borrow functions from any thread. All else on the loop's thread, inside of a
// borrow, or before run() and after it ended.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/thread_annotations.h"

struct epoll_event;

namespace niccolite::wire {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;  // of a watch or a timer; never used twice
  /// A poller's result: no wait, but others of the machine may have the processor.
  static constexpr Clock::duration kYield{1};

  static Result<std::unique_ptr<EventLoop>> create();
  ~EventLoop();

  /// Runs callbacks until stop(). Tasks posted before stop() are run.
  void run();
  void stop();
  void post(std::function<void()> task) EXCLUDES(mutex_);

  /// Sets a function for events that no descriptor signals. It is called before each wait, and
  /// returns the longest allowed wait (Clock::duration::max(): until something happens).
  void set_poller(std::function<Clock::duration()> poll) { poll_ = std::move(poll); }

  /// Calls `ready` with the events (EPOLLIN, ...) of `fd` until forget(). The caller keeps `fd`
  /// open until then.
  Result<Id> watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  /// Watches like watch(). If the loop is shared, a thread that borrows the loop may serve the
  /// watch, too.
  Result<Id> watch_shared(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(Id watch, uint32_t events);
  void forget(Id watch);

  Id at(Clock::time_point time, std::function<void()> task);
  Id after(Clock::duration time, std::function<void()> task) {
    return at(Clock::now() + time, std::move(task));
  }
  void cancel(Id timer);

  /// Called before run(): there may be shared watches.
  Status share();
  /// An epoll of the shared watches. Events that others add to it with the number 0 are ignored.
  int shared_descriptor() const { return shared_.get(); }
  /// Calls `use`, when no callback runs; none begins meanwhile.
  template <typename Use>
  void borrow(Use&& use) EXCLUDES(turn_) {
    turn_.lock();
    const Borrowed borrowed{*this};
    use();
  }
  /// Calls `use` as borrow() does. Returns false if a callback runs, or another thread has borrowed
  /// the loop.
  template <typename Use>
  bool try_borrow(Use&& use) EXCLUDES(turn_) {
    if (!turn_.try_lock()) return false;
    const Borrowed borrowed{*this};
    use();
    return true;
  }
  /// Calls `use` as try_borrow() does. After false, the thread that has the loop calls the callback
  /// of on_return() as soon as it has let go.
  template <typename Use>
  bool borrow_or_hear(Use&& use) EXCLUDES(turn_) {
    if (try_borrow(use)) return true;
    is_wanted_.exchange(true, std::memory_order_acq_rel);  // pairs with let_go()
    return try_borrow(use);
  }
  /// Sets, before run(), a function that is called without the loop, on the thread that had it.
  void on_return(std::function<void()> tell) { on_return_ = std::move(tell); }
  /// Runs the callbacks of the shared watches that have something to do, without waiting.
  void serve_shared();
  /// Dispatches events that the caller collected before it acquired the loop. A descriptor that is
  /// no longer ready gets a harmless callback, and a watch that was removed gets none.
  void serve_shared(std::span<const epoll_event> ready);
  /// Whether the loop's own thread leaves them to others. Callbacks of the poller and borrowers.
  void leave_shared(bool to_others);

 private:
  struct Watch {
    bool is_shared;
    int fd;
    std::function<void(uint32_t)> ready;
  };

  EventLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  struct Borrowed {
    ~Borrowed() { loop.let_go(); }
    EventLoop& loop;
  };
  // The word is only ever exchanged. Suppose that another thread's second try to borrow fails
  // because this thread has the loop. Then this thread's exchange comes after the other one's, and
  // finds it: otherwise the unlock would have happened before that try.
  void let_go() {
    turn_.unlock();
    if (is_wanted_.exchange(false, std::memory_order_acq_rel) && on_return_) on_return_();
  }
  Result<Id> watch_in(const Fd& set, int fd, uint32_t events, std::function<void(uint32_t)> ready);
  const Fd& set_of(const Watch& watch) const { return watch.is_shared ? shared_ : epoll_; }
  Clock::duration time_to_next_timer() const;
  int wait(std::span<epoll_event> events, Clock::duration limit) const;
  void call(Id watch, uint32_t events);
  void run_timers();
  void run_tasks() EXCLUDES(mutex_);

  static constexpr Id kWake = 0;
  static constexpr Id kShared = ~Id{0};

  Fd epoll_;
  Fd wake_;    // eventfd, kWake
  Fd shared_;  // epoll, kShared; none: the loop is not shared
  // Held by the thread that runs callbacks. It guards all members below, except for tasks_.
  std::mutex turn_;
  std::atomic<bool> is_wanted_{false};  // a thread wants to hear when the loop is let go
  std::function<void()> on_return_;
  std::thread::id runner_{};  // of run()
  bool is_left_ = false;      // the shared watches, to others
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool stopping_ = false;
  std::function<Clock::duration()> poll_;
  Id next_id_ = 1;
  std::map<Id, std::shared_ptr<Watch>> watches_;
  std::map<std::pair<Clock::time_point, Id>, std::function<void()>> timers_;
  std::map<Id, Clock::time_point> timer_times_;
};

}  // namespace niccolite::wire
