#include "gpu/virtual/scheduler.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "base/forks.h"
#include "base/log.h"
#include "gpu/virtual/scheduler_batch.h"

namespace niccolite::gpu::virtual_ {
namespace {

using std::chrono::microseconds;

constexpr size_t kMaxBatch = 16;
constexpr int kStepsInARow = 4;   // of an operation that advances, before others get their turn
constexpr int kChainInARow = 32;  // operations of one stream, one after the other

int usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// For threads started during its life: the program's signals are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace

Scheduler& scheduler() {
  // Never destroyed: workers and late callers may use it until the process is gone.
  static Scheduler* const instance = new Scheduler;
  return *instance;
}

Scheduler::Scheduler() : max_workers_(std::max(2, usable_cpus())) {}

bool Scheduler::can_run() {
  if (forks::is_orphan()) return false;  // it has the queues, but no threads
  // acquire pairs with the release below: who sees `started_` may rely on a worker being there.
  if (started_.load(std::memory_order_acquire)) {
    // acquire: pairs with the release in stop_stepping().
    if (exiting_.load(std::memory_order_acquire)) resume_in_destructor();
    return true;
  }
  std::lock_guard lock(mutex_);
  if (workers_ > 0) return true;
  if (!start_worker()) return false;
  {
    std::lock_guard callback_lock(callback_mutex_);
    if (!start_callback_thread()) return false;
  }
  forks::make_orphans();
  // Libraries whose code runs in kernels were loaded before now, so this handler runs before their
  // destructors.
  stop_at_exit();
  started_.store(true, std::memory_order_release);
  return true;
}

bool Scheduler::start_worker() {
  try {
    const SignalsBlocked blocked;
    std::thread([this] { work(); }).detach();
  } catch (const std::system_error& error) {
    if (workers_ == 0)
      LOG(Warn, All, "virtual GPUs cannot start a worker thread: {}", error.what());
    return false;
  }
  ++workers_;
  return true;
}

bool Scheduler::start_callback_thread() {
  if (callback_thread_) return true;
  try {
    const SignalsBlocked blocked;
    std::thread([this] { run_callbacks(); }).detach();
  } catch (const std::system_error& error) {
    LOG(Warn, All, "virtual GPUs cannot start the thread for host callbacks: {}", error.what());
    return false;
  }
  callback_thread_ = true;
  return true;
}

void Scheduler::submit(OperationPtr operation) {
  if (!operation->release()) return;
  std::vector<OperationPtr> ready;
  ready.push_back(std::move(operation));
  dispatch(ready, nullptr);
}

// Sends each of `ready` to its runner, and then the operations that become ready because a
// predecessor needs no runner. One operation for a worker goes to `keep_one` instead, where the
// caller is a worker that can run it next.
void Scheduler::dispatch(std::vector<OperationPtr>& ready, OperationPtr* keep_one) {
  while (!ready.empty()) {
    OperationPtr operation = std::move(ready.back());
    ready.pop_back();
    switch (operation->runner()) {
      case Runner::Inline:
        operation->finish(ready);
        break;
      case Runner::CallbackThread:
        enqueue_callback(std::move(operation));
        break;
      case Runner::Worker:
        if (keep_one != nullptr && *keep_one == nullptr) {
          *keep_one = std::move(operation);
        } else {
          enqueue(std::move(operation));
        }
        break;
    }
  }
}

void Scheduler::enqueue(OperationPtr operation) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  const bool all_busy =
      queue_.size() + static_cast<size_t>(running_) > static_cast<size_t>(workers_);
  if (sleeping_ == 0 && workers_ < max_workers_ && all_busy) start_worker();
  is_unannounced_ = has_watchman_ && helps_in_a_row >= kTrustedHelps && queue_.size() == 1 &&
                    running_ == 0 && !has_poller_;
  if (!is_unannounced_) wake_one();
}

void Scheduler::wake_one() {
  if (sleeping_ > 0) {
    sleepers_wake_.notify_one();
  } else if (has_poller_) {
    poller_wake_.notify_one();
    sources_.wake();
  }
}

void Scheduler::work() {
  pthread_setname_np(pthread_self(), "virtual-gpu");
  // Naps are shorter than the 50 us by which Linux may by default lengthen them.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  Batch batch;
  for (;;) {
    refill(batch);
    run(batch);
  }
}

void Scheduler::refill(Batch& batch) {
  const bool rest = put_back(batch);
  std::unique_lock lock(mutex_);
  if (rest) nap_or_sleep(batch, lock);
  while (queue_.empty() || stopping_) {
    if (batch.serves) {
      lock.unlock();
      stop_serving(batch);
      lock.lock();
      continue;
    }
    // A poller that sleeps would be waited for by all who leave the polling to it.
    give_up_polling(batch);
    sleep(lock);
    batch.notice_progress();
  }
  take(batch);
}

// Puts the unfinished operations of a batch back. True when it is time to rest.
bool Scheduler::put_back(Batch& batch) {
  if (batch.advanced) {
    // relaxed: a hint only.
    batch.progress_seen = progress_.fetch_add(1, std::memory_order_relaxed) + 1;
    batch.notice_progress();
    stop_serving(batch);
  }
  const bool rest = !batch.advanced && batch.should_rest(progress_.load(std::memory_order_relaxed));
  if (!rest && batch.idle_passes > 0 && batch.blocked_in_a_row == 0) sched_yield();

  std::lock_guard lock(mutex_);
  running_ -= static_cast<int>(batch.unfinished.size());
  for (OperationPtr& operation : batch.unfinished) queue_.push_back(std::move(operation));
  batch.unfinished.clear();
  if (stopping_) stopped_.notify_all();
  if (batch.advanced) {
    // Others went to sleep because nothing moved; that may have changed for their operations too.
    // One at least is taken by the caller.
    if (queue_.size() > 1 && sleeping_ > 0) sleepers_wake_.notify_one();
    give_up_polling(batch);
  }
  return rest;
}

void Scheduler::take(Batch& batch) {
  is_unannounced_ = false;
  batch.advanced = false;
  batch.pass = queue_.size() + static_cast<size_t>(running_);
  const size_t share = queue_.size() / (2 * static_cast<size_t>(workers_));
  const size_t count = std::clamp(share, size_t{1}, kMaxBatch);
  for (size_t i = 0; i < count; ++i) {
    batch.operations.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  running_ += static_cast<int>(count);
}

// Called before somebody else may become the poller.
void Scheduler::stop_serving(Batch& batch) {
  if (std::exchange(batch.serves, false)) sources_.end();
}

void Scheduler::give_up_polling(Batch& batch) {
  if (std::exchange(batch.is_poller, false)) has_poller_ = false;
}

void Scheduler::nap_or_sleep(Batch& batch, std::unique_lock<std::mutex>& lock) {
  if (has_poller_ && !batch.is_poller) {
    sleep(lock);
    batch.notice_progress();
    return;
  }
  nap(batch, lock);
}

void Scheduler::nap(Batch& batch, std::unique_lock<std::mutex>& lock) {
  // Until it has advanced something: a poller that looks round between two naps is still the
  // poller.
  has_poller_ = batch.is_poller = true;
  if (!batch.serves && !sources_.any()) {
    poller_wake_.wait_for(lock, batch.nap);
    batch.lengthen_nap();
    return;
  }
  lock.unlock();
  if (!std::exchange(batch.serves, true)) {
    sources_.begin();  // and looks round once more, before it waits
  } else if (sources_.wait(batch.is_woken ? kLongestNap : batch.nap)) {
    batch.lengthen_nap();
  } else {
    stop_serving(batch);  // the last has gone
  }
  lock.lock();
}

void Scheduler::run(Batch& batch) {
  std::vector<OperationPtr> ready;
  int finished = 0;
  for (OperationPtr& operation : batch.operations) {
    for (int chain = 0; operation != nullptr; ++chain) {
      Progress progress = operation->step();
      if (progress == Progress::WouldBlock) {
        ++batch.blocked_in_a_row;
        batch.all_woken = batch.all_woken && operation->is_woken();
      }
      for (int i = 0; progress != Progress::WouldBlock; ++i) {
        batch.advanced = true;
        if (progress == Progress::Done || i == kStepsInARow) break;
        progress = operation->step();
      }
      if (progress != Progress::Done) {
        batch.unfinished.push_back(std::move(operation));
        break;
      }
      operation->finish(ready);
      OperationPtr next;
      dispatch(ready, chain < kChainInARow ? &next : nullptr);
      if (next != nullptr && !is_for(batch, *next)) enqueue(std::move(next));
      operation = std::move(next);
      if (operation == nullptr) ++finished;
    }
  }
  batch.operations.clear();
  if (finished > 0) {
    std::lock_guard lock(mutex_);
    running_ -= finished;
  }
}

void Scheduler::enqueue_callback(OperationPtr operation) {
  std::lock_guard lock(callback_mutex_);
  callbacks_.push_back(std::move(operation));
  callback_wake_.notify_one();
}

void Scheduler::run_callbacks() {
  pthread_setname_np(pthread_self(), "virtual-gpu-cb");
  std::vector<OperationPtr> ready;
  for (;;) {
    OperationPtr operation;
    {
      std::unique_lock lock(callback_mutex_);
      while (callbacks_.empty()) callback_wake_.wait(lock);
      operation = std::move(callbacks_.front());
      callbacks_.pop_front();
    }
    operation->call_host();
    operation->finish(ready);
    dispatch(ready, nullptr);
  }
}

// The system runs handlers in reverse order of their registration. A handler that is registered
// while the process exits runs next, after the destructor that runs now.
void Scheduler::stop_at_exit() {
  std::atexit([] { scheduler().stop_stepping(); });
}

// A thread uses the GPUs after stop_stepping().
void Scheduler::resume_in_destructor() {
  if (pthread_equal(exiting_thread_, pthread_self()) == 0) return;
  std::lock_guard lock(mutex_);
  if (!stopping_) return;
  stopping_ = false;
  stop_at_exit();
  sleepers_wake_.notify_all();
}

void Scheduler::stop_stepping() {
  if (forks::is_orphan()) return;
  std::unique_lock lock(mutex_);
  stopping_ = true;
  // relaxed: one thread alone ends the process, this one.
  if (!exiting_.load(std::memory_order_relaxed)) {
    exiting_thread_ = pthread_self();
    // [release] the thread, to can_run().
    exiting_.store(true, std::memory_order_release);
  }
  // Bounded, as a step is; the limit is for a step that does not keep its promise.
  stopped_.wait_for(lock, std::chrono::seconds(2),
                    [this]() REQUIRES(mutex_) { return running_ == 0; });
}

}  // namespace niccolite::gpu::virtual_
