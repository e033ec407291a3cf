// EventSources: where data that kernels wait for come from outside (tasks.h), and the wait for all
// of them at once. One worker at a time, the scheduler's poller, serves them; what happens between
// its last look at the kernels and its wait ends the wait.
//
//   poller                                              others
//   begin(): is_open_ = true
//   steps all kernels once more: nothing moves
//   wait()                                      <---    wake(): exchanges is_open_, and writes if it was
//   ...                                                 a descriptor becomes readable
//   serves; is_open_ = true
//   steps all kernels ...
//   end(): is_open_ = false
//
// wait() leaves out a source that another thread has in its hands, until that thread wakes the
// poller; otherwise it would end at once again and again. Each wait() begins with the sources that
// were left out. So a thread that loses its core within one source does not keep the others
// waiting.
//
// The descriptors of the sources are in one epoll, and so is an eventfd that ends the wait. If
// there is only one source, which is the usual case, wait() waits for its descriptor directly,
// which saves a system call for each message. The eventfd is in that descriptor, too. It is
// readable only while somebody serves: otherwise the source's own thread, which waits for the
// descriptor at other times, would find it readable again and again.
//
// The descriptors for the wait exist while there are sources: detach() of the last ends the wait,
// if there is one, and closes them.
//
// Thread safety: begin(), wait() and end() by one thread at a time, the rest by any. detach() not
// within serve().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::gpu::virtual_ {

class EventSources {
 public:
  Status attach(EventSource& source) EXCLUDES(mutex_);
  /// Detaches the source: afterwards nobody serves it any more.
  void detach(EventSource& source) EXCLUDES(mutex_);
  /// Are there any?
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }  // a hint

  void begin() EXCLUDES(mutex_);
  /// Until a source has been served, wake() is called, or the time is over. The caller then steps
  /// kernels before it waits again. False, at once, if there are no sources to wait for.
  bool wait(std::chrono::microseconds most) EXCLUDES(mutex_);
  void end() EXCLUDES(mutex_);
  /// Ends the present or next wait of whoever is between begin() and end().
  void wake() EXCLUDES(descriptors_mutex_);

 private:
  Status open() REQUIRES(mutex_) EXCLUDES(descriptors_mutex_);
  void close() REQUIRES(mutex_) EXCLUDES(descriptors_mutex_);
  void write_wake() EXCLUDES(descriptors_mutex_);
  void read_wake() EXCLUDES(descriptors_mutex_);
  void take_wake() REQUIRES(descriptors_mutex_);
  void choose_alone() REQUIRES(mutex_) EXCLUDES(descriptors_mutex_);
  void serve(uint64_t number, std::span<const epoll_event> ready) REQUIRES(mutex_);
  bool serve_those_left_out() REQUIRES(mutex_);  // true: one at least

  std::atomic<size_t> count_{0};
  std::atomic<bool> is_open_{false};
  std::mutex mutex_;  // held while a source is served
  Fd set_
      GUARDED_BY(mutex_);  // epoll: wake_, of number 0, and the sources; valid while there are any
  bool is_waiting_ GUARDED_BY(mutex_) = false;  // somebody is in epoll_wait() on set_
  std::condition_variable wait_ended_;
  std::mutex descriptors_mutex_;  // after mutex_: who serves a source may wait for one who wakes
  Fd wake_ GUARDED_BY(descriptors_mutex_);                   // eventfd; as long as set_
  bool takes_wakes_ GUARDED_BY(descriptors_mutex_) = false;  // else nobody would read them
  bool is_written_ GUARDED_BY(descriptors_mutex_) = false;   // and not read
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, EventSource*> sources_ GUARDED_BY(mutex_);
  uint64_t alone_ GUARDED_BY(mutex_) = 0;   // the only source, if its descriptor has wake_; else 0
  uint64_t waited_ GUARDED_BY(mutex_) = 0;  // while is_waiting_: for that source's; 0: for set_
  std::vector<uint64_t> left_out_ GUARDED_BY(mutex_);  // of the wait
  bool is_serving_ GUARDED_BY(mutex_) = false;
};

}  // namespace niccolite::gpu::virtual_
