// How threads that wait for an operation do a worker's work, and how workers sleep meanwhile.
#include <pthread.h>

#include <algorithm>
#include <cfenv>

#include "gpu/virtual/scheduler.h"
#include "gpu/virtual/scheduler_batch.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr microseconds kWatch{250};
constexpr microseconds kLongestWatch{1000};  // where all were helped for as long

/// A kernel rounds as it does on a worker, whatever the program has set for its own thread.
class DefaultRounding {
 public:
  DefaultRounding() {
    fegetenv(&environment_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultRounding() { fesetenv(&environment_); }
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;

 private:
  fenv_t environment_;
};

}  // namespace

void Scheduler::help(const Operation& notify, const Latch& latch) {
  if (!sources_.any()) return;
  Batch batch;
  batch.only_for = &notify;
  {
    std::lock_guard lock(mutex_);
    if (!may_help(batch, latch) || running_ > 0) {
      helps_in_a_row = 0;
      if (std::exchange(is_unannounced_, false)) wake_one();
      return;
    }
  }
  const DefaultRounding rounding;
  int cancellation;  // of a thread that has operations in its hands
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
  for (;;) {
    const bool rest = put_back(batch);
    std::unique_lock lock(mutex_);
    if (rest && may_help(batch, latch)) nap(batch, lock);
    if (!may_help(batch, latch)) break;
    take(batch);
    lock.unlock();
    run(batch);
  }
  stop_serving(batch);
  std::unique_lock lock(mutex_);
  give_up_polling(batch);
  if (!queue_.empty()) wake_one();
  helps_in_a_row = latch.is_open() ? helps_in_a_row + 1 : 0;
  if (helps_in_a_row >= kTrustedHelps) {
    ++helped_;
    wants_watchman_ = true;
    if (!has_watchman_ && sleeping_ > 0) sleepers_wake_.notify_one();
  }
  lock.unlock();
  pthread_setcancelstate(cancellation, nullptr);
}

bool Scheduler::may_help(const Batch& batch, const Latch& latch) const {
  return queue_.size() == 1 && !stopping_ && (!has_poller_ || batch.is_poller) &&
         !latch.is_open() && is_for(batch, *queue_.front());
}

bool Scheduler::is_for(const Batch& batch, const Operation& operation) const {
  return batch.only_for == nullptr || operation.leads_to(*batch.only_for);
}

// Until there may be something to do.
void Scheduler::sleep(std::unique_lock<std::mutex>& lock) {
  ++sleeping_;
  if (wants_watchman_ && !has_watchman_) {
    has_watchman_ = true;
    microseconds watch = kWatch;
    while (wants_watchman_) {
      const uint64_t helped = helped_;
      const std::cv_status status = sleepers_wake_.wait_for(lock, watch);
      if (status == std::cv_status::no_timeout || is_unannounced_) break;
      if (helped_ == helped) wants_watchman_ = false;
      watch = std::min(2 * watch, kLongestWatch);
    }
    has_watchman_ = false;
  } else {
    sleepers_wake_.wait(lock);
  }
  --sleeping_;
}

}  // namespace niccolite::gpu::virtual_
