#include "comm/lifetime.h"

#include <algorithm>
#include <utility>

namespace niccolite::comm {

Status Lifetime::check_ready() const {
  if (state() == State::Finalized)
    return Status::invalid_argument(
        "communicator of rank {} was finalized: only ncclCommDestroy may follow", rank_);
  return check_usable();
}

Status Lifetime::check_usable() const {
  switch (state()) {
    case State::Ready:
    case State::Finalized:
      return {};
    case State::InProgress:
      return Status::invalid_argument(
          "communicator of rank {} is still in progress: poll ncclCommGetAsyncError until it "
          "returns something other than "
          "ncclInProgress",
          rank_);
    case State::Failed:
      return has_outlived_failure() ? Status() : failure();
  }
  return Status::internal("communicator in an unknown state");
}

Status Lifetime::check_takes_operations() const {
  TRY(check_ready());
  return has_failed() ? failure() : Status();
}

Status Lifetime::failure() const {
  std::lock_guard lock(mutex_);
  return is_left_out(failure_.peer()) && !background_failure_.is_ok() ? background_failure_.copy()
                                                                      : failure_.copy();
}

bool Lifetime::has_outlived_failure() const {
  std::lock_guard lock(mutex_);
  return is_left_out(failure_.peer()) && background_failure_.is_ok();
}

void Lifetime::leave_out(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  left_out_.insert(left_out_.end(), ranks.begin(), ranks.end());
  background_failure_ = {};
}

bool Lifetime::is_left_out(int peer) const {
  return std::ranges::find(left_out_, peer) != left_out_.end();
}

void Lifetime::begin_background() {
  std::lock_guard lock(mutex_);  // against fail()
  change(State::Ready, State::InProgress);
  // [release] pairs with state()
  if (has_failed()) works_after_failure_.store(true, std::memory_order_release);
}

bool Lifetime::keep_background_failure(const Status& status) {
  std::lock_guard lock(mutex_);
  if (!background_failure_.is_ok()) return false;
  background_failure_ = status.copy();
  return is_left_out(failure_.peer());
}

void Lifetime::settle(bool is_ok) {
  std::lock_guard lock(mutex_);  // against fail()
  if (is_ok) change(State::InProgress, State::Ready);
  works_after_failure_.store(false, std::memory_order_release);  // pairs with state()
}

void Lifetime::keep_thread(std::shared_ptr<Thread> thread) {
  std::shared_ptr<Thread> previous;  // joins behind the lock
  std::lock_guard lock(thread_mutex_);
  previous = std::exchange(thread_, std::move(thread));
}

void Lifetime::join_thread() {
  std::shared_ptr<Thread> thread;
  std::lock_guard lock(thread_mutex_);
  thread = std::exchange(thread_, nullptr);
}

Status Lifetime::revoked() const {
  return Status::invalid_usage(
      "the communicator of rank {} was revoked (ncclCommRevoke, or NCCL_SHRINK_ABORT): it takes no "
      "operations any more",
      rank_);
}

Status Lifetime::gone() const {
  Status status = failure();
  if (!status.is_ok()) return status;
  return Status::invalid_usage("the communicator of rank {} was aborted", rank_);
}

}  // namespace niccolite::comm
