#include "wire/event_loop.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/epoll.h"

namespace niccolite::wire {

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status::from_errno(errno, "cannot create an epoll (limit: ulimit -n)");
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid())
    return Status::from_errno(errno, "cannot create an eventfd (limit: ulimit -n)");
  if (!epoll_control(epoll, EPOLL_CTL_ADD, wake.get(), EPOLLIN, kWake))
    return Status::from_errno(errno, "cannot watch an eventfd");
  epoll.withhold();
  wake.withhold();
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(wake)));
}

EventLoop::~EventLoop() {
  // Destroys tasks that never ran. They may own links, which unregister here, so watches and timers
  // must still exist. The lock is not held, because a link's destructor may post another task.
  std::vector<std::function<void()>> tasks;
  do {
    tasks.clear();
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  } while (!tasks.empty());
}

void EventLoop::run() {
  turn_.lock();
  runner_ = std::this_thread::get_id();
  while (!stopping_) {
    std::array<epoll_event, 64> events;
    const Clock::duration patience = poll_ ? poll_() : Clock::duration::max();
    const Clock::duration limit = std::min(patience, time_to_next_timer());
    int count;
    if (limit == Clock::duration::zero()) {
      count = wait(events, limit);
    } else {
      let_go();
      if (limit == kYield) sched_yield();
      count = wait(events, limit == kYield ? Clock::duration::zero() : limit);
      turn_.lock();
    }
    for (int i = 0; i < count; ++i) {
      const epoll_event event = events[static_cast<size_t>(i)];
      const Id id = event.data.u64;  // a copy: the structure is packed, nothing may refer into it
      if (id == kWake) {
        run_tasks();
      } else if (id == kShared) {
        if (!is_left_) serve_shared();
      } else {
        call(id, event.events);
      }
    }
    run_timers();
  }
  runner_ = {};
  let_go();
}

void EventLoop::call(Id id, uint32_t events) {
  // A callback before this one may have forgotten the watch. The copy keeps it while it runs.
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  const std::shared_ptr<Watch> watch = found->second;
  watch->ready(events);
}

Status EventLoop::share() {
  shared_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!shared_.valid())
    return Status::from_errno(errno, "cannot create an epoll (limit: ulimit -n)");
  shared_.withhold();
  if (!epoll_control(epoll_, EPOLL_CTL_ADD, shared_.get(), EPOLLIN, kShared))
    return Status::from_errno(errno, "cannot watch an epoll");
  return {};
}

void EventLoop::serve_shared() {
  std::array<epoll_event, 16> events;  // a descriptor with more events is ready again
  const int count = epoll_wait(shared_.get(), events.data(), static_cast<int>(events.size()), 0);
  serve_shared(std::span<const epoll_event>(events).first(static_cast<size_t>(std::max(count, 0))));
}

void EventLoop::serve_shared(std::span<const epoll_event> ready) {
  for (const epoll_event event : ready) call(event.data.u64, event.events);
}

void EventLoop::leave_shared(bool to_others) {
  if (std::exchange(is_left_, to_others) == to_others) return;
  epoll_control(epoll_, EPOLL_CTL_MOD, shared_.get(), to_others ? 0u : unsigned{EPOLLIN}, kShared);
}

void EventLoop::stop() {
  post([this] { stopping_ = true; });
}

void EventLoop::post(std::function<void()> task) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // Cannot fail but by a full counter, which wakes as well. Only the first task of a batch needs to
  // wake the loop.
  if (first && write(wake_.get(), &one, sizeof one) < 0) return;
}

void EventLoop::run_tasks() {
  uint64_t count;
  if (read(wake_.get(), &count, sizeof count) < 0) return;
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) task();
}

Result<EventLoop::Id> EventLoop::watch(int fd, uint32_t events,
                                       std::function<void(uint32_t)> ready) {
  return watch_in(epoll_, fd, events, std::move(ready));
}

Result<EventLoop::Id> EventLoop::watch_shared(int fd, uint32_t events,
                                              std::function<void(uint32_t)> ready) {
  return watch_in(shared_.valid() ? shared_ : epoll_, fd, events, std::move(ready));
}

Result<EventLoop::Id> EventLoop::watch_in(const Fd& set, int fd, uint32_t events,
                                          std::function<void(uint32_t)> ready) {
  const Id id = next_id_++;
  if (!epoll_control(set, EPOLL_CTL_ADD, fd, events, id))
    return Status::from_errno(errno, "cannot watch a socket (epoll_ctl)");
  watches_.emplace(id, std::make_shared<Watch>(Watch{&set == &shared_, fd, std::move(ready)}));
  return id;
}

void EventLoop::change(Id watch, uint32_t events) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  epoll_control(set_of(*found->second), EPOLL_CTL_MOD, found->second->fd, events, watch);
}

void EventLoop::forget(Id watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  epoll_ctl(set_of(*found->second).get(), EPOLL_CTL_DEL, found->second->fd, nullptr);
  watches_.erase(found);
}

EventLoop::Id EventLoop::at(Clock::time_point time, std::function<void()> task) {
  const Id id = next_id_++;
  timers_.emplace(std::pair(time, id), std::move(task));
  timer_times_.emplace(id, time);
  // Another thread that has borrowed the loop may set the timer. Then the loop's own thread wakes
  // up, because its wait may be too long.
  if (runner_ != std::thread::id() && runner_ != std::this_thread::get_id()) post([] {});
  return id;
}

void EventLoop::cancel(Id timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase(std::pair(found->second, timer));
  timer_times_.erase(found);
}

EventLoop::Clock::duration EventLoop::time_to_next_timer() const {
  if (timers_.empty()) return Clock::duration::max();
  return std::max(timers_.begin()->first.first - Clock::now(), Clock::duration::zero());
}

int EventLoop::wait(std::span<epoll_event> events, Clock::duration limit) const {
  const auto most = static_cast<int>(events.size());
  if (limit == Clock::duration::max()) return epoll_wait(epoll_.get(), events.data(), most, -1);
  if (limit == Clock::duration::zero()) return epoll_wait(epoll_.get(), events.data(), most, 0);
  return epoll_wait_for(epoll_.get(), events, limit);
}

void EventLoop::run_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

}  // namespace niccolite::wire
