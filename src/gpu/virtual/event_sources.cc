#include "gpu/virtual/event_sources.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/epoll.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr uint64_t kWake = EventSource::kForeign;  // of wake_; sources have other numbers
constexpr int kMostEvents = 16;                    // of one wait; the next has the rest

thread_local bool serves =
    false;  // this thread is between begin() and end(), and need not be woken

}  // namespace

Status EventSources::open() {
  if (set_.valid()) return {};
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!set.valid() || !wake.valid())
    return Status::from_errno(errno, "cannot create an epoll or eventfd (limit: ulimit -n)");
  if (!epoll_control(set, EPOLL_CTL_ADD, wake.get(), EPOLLIN, kWake))
    return Status::from_errno(errno, "cannot watch an eventfd");
  set.withhold();
  wake.withhold();
  set_ = std::move(set);
  std::lock_guard lock(descriptors_mutex_);
  wake_ = std::move(wake);
  return {};
}

void EventSources::close() {
  set_ = Fd();
  std::lock_guard lock(descriptors_mutex_);
  wake_ = Fd();
}

Status EventSources::attach(EventSource& source) {
  std::lock_guard lock(mutex_);
  TRY(open());
  if (!epoll_control(set_, EPOLL_CTL_ADD, source.descriptor(), EPOLLIN, next_)) {
    Status failed = Status::from_errno(errno, "cannot watch a source of events");
    if (sources_.empty() && !is_waiting_) close();
    return failed;
  }
  sources_.emplace(next_++, &source);
  choose_alone();
  if (is_serving_) source.begin_serving();
  // [release] the descriptors, to whoever sees that there are sources and locks.
  count_.store(sources_.size(), std::memory_order_release);
  return {};
}

// If there are several sources, wait() watches each of them in set_. A thread that waits for the
// source that was alone returns.
void EventSources::choose_alone() {
  alone_ = 0;
  if (sources_.size() == 1) {
    const auto& [number, source] = *sources_.begin();
    std::lock_guard lock(descriptors_mutex_);
    if (epoll_control(source->descriptor(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWake) ||
        errno == EEXIST)
      alone_ = number;
  } else if (is_waiting_ && waited_ != 0) {
    write_wake();
  }
}

void EventSources::detach(EventSource& source) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::ranges::find_if(sources_, [&](const auto& entry) { return entry.second == &source; });
  if (found == sources_.end()) return;
  const uint64_t number = found->first;
  epoll_ctl(set_.get(), EPOLL_CTL_DEL, source.descriptor(), nullptr);
  sources_.erase(found);
  if (is_waiting_ && waited_ == number) write_wake();
  while (is_waiting_ && waited_ == number) wait_ended_.wait(lock);
  {
    std::lock_guard descriptors(descriptors_mutex_);
    epoll_ctl(source.descriptor(), EPOLL_CTL_DEL, wake_.get(), nullptr);  // if it is there
  }
  choose_alone();
  count_.store(sources_.size(), std::memory_order_release);
  if (is_serving_) source.end_serving();
  if (!sources_.empty()) return;
  if (is_waiting_) write_wake();
  while (is_waiting_) wait_ended_.wait(lock);
  if (sources_.empty()) close();  // else another has been attached meanwhile
}

void EventSources::begin() {
  serves = true;
  std::lock_guard lock(mutex_);
  {
    std::lock_guard descriptors(descriptors_mutex_);
    takes_wakes_ = true;
  }
  is_serving_ = true;
  for (const auto& [number, source] : sources_) source->begin_serving();
  // seq_cst, as in wake(): either the steps that follow find what the waker has done, or it writes.
  is_open_.exchange(true);
}

bool EventSources::wait(std::chrono::microseconds most) {
  std::unique_lock lock(mutex_);
  // After the last has gone, detach() waits for nobody to be here any more.
  if (!set_.valid() || sources_.empty()) return false;
  if (!left_out_.empty() && serve_those_left_out()) {
    is_open_.exchange(true);
    return true;  // the data that kernels wait for may be here
  }
  for (const auto& [number, source] : sources_) source->before_wait();
  // A source that another thread has in its hands would end a wait for its own descriptor at once.
  waited_ = left_out_.empty() ? alone_ : 0;
  is_waiting_ = true;
  // Stays open while is_waiting_.
  const int set = waited_ != 0 ? sources_.at(waited_)->descriptor() : set_.get();
  lock.unlock();
  std::array<epoll_event, kMostEvents> events;
  const int count = epoll_wait_for(set, events, most);
  lock.lock();
  const auto end = events.begin() + std::max(count, 0);
  const auto others = std::remove_if(
      events.begin(), end, [](const epoll_event& event) { return event.data.u64 == kWake; });
  if (others != end) read_wake();
  if (waited_ != 0) {
    if (others != events.begin()) serve(waited_, {events.begin(), others});
  } else {
    std::for_each(events.begin(), others,
                  [&](const epoll_event event) { serve(event.data.u64, {}); });
  }
  is_waiting_ = false;
  wait_ended_.notify_all();
  is_open_.exchange(true);
  return true;
}

void EventSources::serve(uint64_t number, std::span<const epoll_event> ready) {
  const auto found = sources_.find(number);
  if (found == sources_.end() || found->second->serve(ready)) return;
  epoll_control(set_, EPOLL_CTL_MOD, found->second->descriptor(), 0u, number);
  left_out_.push_back(number);
}

bool EventSources::serve_those_left_out() {
  bool any = false;
  std::erase_if(left_out_, [&](uint64_t number) {
    const auto found = sources_.find(number);
    if (found == sources_.end()) return true;
    if (!found->second->serve({})) return false;
    any = true;
    return epoll_control(set_, EPOLL_CTL_MOD, found->second->descriptor(), EPOLLIN, number);
  });
  return any;
}

void EventSources::end() {
  serves = false;
  is_open_.exchange(false);  // no mere store: begin() acquires what came with wake() before
  std::lock_guard lock(mutex_);
  is_serving_ = false;
  for (const auto& [number, source] : sources_) source->end_serving();
  std::lock_guard descriptors(descriptors_mutex_);
  takes_wakes_ = false;
  if (is_written_) take_wake();
}

void EventSources::wake() {
  if (!serves && is_open_.exchange(false)) write_wake();
}

void EventSources::write_wake() {
  std::lock_guard lock(descriptors_mutex_);
  const uint64_t one = 1;
  // Cannot fail but by a full counter, which wakes as well, or where there is nothing to wait for.
  if (!wake_.valid() || !takes_wakes_) return;
  is_written_ = write(wake_.get(), &one, sizeof one) >= 0 || errno == EAGAIN;
}

void EventSources::read_wake() {
  std::lock_guard lock(descriptors_mutex_);
  take_wake();
}

void EventSources::take_wake() {
  is_written_ = false;
  uint64_t wakes;
  if (read(wake_.get(), &wakes, sizeof wakes) < 0) return;
}

}  // namespace niccolite::gpu::virtual_
