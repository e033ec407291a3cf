// Lifetime: the state of a communicator, and the reasons why it cannot be used.
//
//   InProgress ── change() ──> Ready ── change() ──> Finalized
//        └─────────────────── fail() ──> Failed
//
// The first failure stays, and every later call returns it. A communicator outlives its failure
// when a shrink leaves out the rank whose loss was the failure: then the failure concerns
// operations alone (docs/design/failures.md). Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/wait.h"

namespace niccolite::comm {

/// Does somebody else print the failure?
enum class Printed : bool { No, Yes };

enum class State : uint8_t { InProgress, Ready, Finalized, Failed };

class Lifetime {
 public:
  /// `rank` is for messages.
  explicit Lifetime(int rank) : rank_(rank) {}

  State state() const {
    // [acquire] pair with change(), fail(), which writes them in the opposite order, and settle().
    const State state = state_.load(std::memory_order_acquire);
    const bool works =
        state == State::Failed && works_after_failure_.load(std::memory_order_acquire);
    return works ? State::InProgress : state;
  }
  bool has_failed() const {
    return state_.load(std::memory_order_acquire) == State::Failed;  // pairs with fail()
  }
  /// Moves from one state to another; false if a failure came in between.
  bool change(State from, State to) {
    // [release] all that was made in state `from`, to readers of state().
    return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  /// The reason why the communicator cannot be used now: fine, InProgress as InvalidArgument, or
  /// its asynchronous error.
  Status check_ready() const;
  /// Like check_ready(), but a finalized communicator may still be asked about itself.
  Status check_usable() const;
  /// Like check_ready(), for operations: a failure stops them even if the communicator has outlived
  /// it.
  Status check_takes_operations() const;

  /// The asynchronous error; fine when there is none.
  Status failure() const EXCLUDES(mutex_);
  /// Is the failure the loss of a rank that a shrink has left out? False while there is an error of
  /// background work to report.
  bool has_outlived_failure() const EXCLUDES(mutex_);
  /// A shrink without these ranks has succeeded.
  void leave_out(const std::vector<int>& ranks) EXCLUDES(mutex_);

  enum class News : uint8_t {
    None,      // there is a failure already, which stays
    Outlived,  // the first failure, of a rank that a shrink has left out: nothing to print
    Failed,    // the first failure
  };
  /// Takes `status` as the failure if there is none. Calls before_seen() before any thread can see
  /// the state Failed; the function must not lock this object again.
  template <typename BeforeSeen>
  News fail(const Status& status, BeforeSeen&& before_seen) EXCLUDES(mutex_) {
    std::lock_guard lock(mutex_);
    if (!failure_.is_ok()) return News::None;
    failure_ = status.copy();
    const bool outlived = is_left_out(status.peer());
    // Nothing to report, unless the work in progress fails. [release] pairs with state().
    if (outlived && state() == State::InProgress)
      works_after_failure_.store(true, std::memory_order_release);
    before_seen();
    state_.store(State::Failed, std::memory_order_release);  // pairs with state()
    return outlived ? News::Outlived : News::Failed;
  }

  /// Background work begins. A nonblocking communicator is in progress until settle().
  void begin_background() EXCLUDES(mutex_);
  /// Background work has failed, before fail() gets the error. True: the communicator has outlived
  /// its failure, so that this error replaces it, and nobody else prints it.
  bool keep_background_failure(const Status& status) EXCLUDES(mutex_);
  /// Background work has ended; `is_ok`: without an error.
  void settle(bool is_ok) EXCLUDES(mutex_);
  /// Owns the thread of the last background work. The thread before it has settled: a communicator
  /// in progress takes no new work.
  void keep_thread(std::shared_ptr<Thread> thread) EXCLUDES(thread_mutex_);
  void join_thread() EXCLUDES(thread_mutex_);

  /// Takes no operations any more.
  void revoke() { is_revoked_.store(true, std::memory_order_release); }  // pairs with is_revoked()
  bool is_revoked() const {
    return is_revoked_.load(std::memory_order_acquire);  // pairs with revoke()
  }
  /// The error of a call on a revoked communicator.
  Status revoked() const;
  /// The error of a call that another thread's abort overtook.
  Status gone() const;

  /// Raised by the first failure and by the user's abort: ends all waits of the host.
  Abort& waits() { return waits_; }
  const Abort& waits() const { return waits_; }
  /// Raised by the user's abort alone.
  Abort& aborted_by_user() { return aborted_by_user_; }
  const Abort& aborted_by_user() const { return aborted_by_user_; }

 private:
  /// Has a shrink left this rank out? -1: no rank.
  bool is_left_out(int peer) const REQUIRES(mutex_);

  const int rank_;
  std::atomic<State> state_{State::InProgress};
  // Background work goes on after a failure: a shrink without the rank whose loss the failure is,
  // or work that hit upon that loss. Written under mutex_.
  std::atomic<bool> works_after_failure_{false};
  std::atomic<bool> is_revoked_{false};
  Abort waits_;
  Abort aborted_by_user_;
  mutable std::mutex mutex_;
  Status failure_ GUARDED_BY(mutex_);
  std::vector<int> left_out_ GUARDED_BY(mutex_);  // by shrinks that succeeded
  // The first error of background work since the last of these shrinks.
  Status background_failure_ GUARDED_BY(mutex_);
  std::mutex thread_mutex_;
  std::shared_ptr<Thread> thread_ GUARDED_BY(thread_mutex_);  // of the last background work
};

}  // namespace niccolite::comm
