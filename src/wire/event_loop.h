// EventLoop: waits for sockets (epoll), timers and tasks posted by other threads, and runs their
// callbacks one after the other on the thread that called run(). What hangs on a loop is touched by
// that thread only, or by one that borrows the loop: while the loop's own thread waits, another may
// do what belongs to that thread, and serve the watches that are shared. Thread safety: post(),
// stop() and those that borrow from any thread; the rest on the loop's thread, within what borrows,
// or before run() and after it ended.
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

  /// For what no descriptor tells: called before each wait, with what may be waited at most as its
  /// result (Clock::duration::max(): until something happens).
  void set_poller(std::function<Clock::duration()> poll) { poll_ = std::move(poll); }

  /// Calls `ready` with the events (EPOLLIN, ...) of `fd` until forget(). The caller keeps `fd`
  /// open until then.
  Result<Id> watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  /// The same, but if the loop is shared whoever borrows it may serve it, too.
  Result<Id> watch_shared(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(Id watch, uint32_t events);
  void forget(Id watch);

  Id at(Clock::time_point time, std::function<void()> task);
  Id after(Clock::duration time, std::function<void()> task) {
    return at(Clock::now() + time, std::move(task));
  }
  void cancel(Id timer);

  /// Before run(): there may be shared watches.
  Status share();
  /// An epoll of the shared watches. What others add to it under number 0 is left alone.
  int shared_descriptor() const { return shared_.get(); }
  /// Calls `use`, when no callback runs; none begins meanwhile.
  template <typename Use>
  void borrow(Use&& use) EXCLUDES(turn_) {
    turn_.lock();
    const Borrowed borrowed{*this};
    use();
  }
  /// The same, or false if a callback runs, or somebody else has borrowed the loop.
  template <typename Use>
  bool try_borrow(Use&& use) EXCLUDES(turn_) {
    if (!turn_.try_lock()) return false;
    const Borrowed borrowed{*this};
    use();
    return true;
  }
  /// The same; after false, whoever has the loop calls what on_return() was given as soon as it has
  /// let go.
  template <typename Use>
  bool borrow_or_hear(Use&& use) EXCLUDES(turn_) {
    if (try_borrow(use)) return true;
    is_wanted_.exchange(true, std::memory_order_acq_rel);  // pairs with let_go()
    return try_borrow(use);
  }
  /// Before run(). Called without the loop, on the thread that had it.
  void on_return(std::function<void()> tell) { on_return_ = std::move(tell); }
  /// Runs the callbacks of the shared watches that have something to do, without waiting.
  void serve_shared();
  /// Those that the caller has found there itself, before it had the loop: what is no longer ready
  /// is called in vain, and what is no longer watched is not called.
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
  // The word is only ever exchanged. Take a thread whose second try to borrow fails because this
  // one has the loop: this one's exchange comes after that thread's, and finds it, as otherwise the
  // unlock would have happened before that try.
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
  // Held by whoever runs callbacks: all below but tasks_ is theirs.
  std::mutex turn_;
  std::atomic<bool> is_wanted_{false};  // by who shall hear when the loop is let go
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
