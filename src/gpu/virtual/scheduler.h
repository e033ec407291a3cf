// Scheduler: a fixed pool of workers that steps thousands of operations, and one thread for host
// callbacks.
//
// Run queue: one FIFO under one mutex. A worker takes a batch from its head, steps each operation
// and puts the unfinished ones back to its tail, all under one locking per batch; so a step costs a
// small part of a lock, and every operation gets its turn. Waiting kernels never occupy a worker.
//
// When nothing moves, the cause is usually a peer in another process, which cannot wake us. A
// worker that has seen the whole queue block, while nobody else in the process advanced, first
// yields the processor for some passes; then one worker (the *poller*) goes on looking between
// naps, and all others sleep until there is progress or new work. Naps grow to 100 us, and further
// to 1 ms only as long as they lengthen the wait by no more than a 32nd. So a waiting process costs
// a few short passes per millisecond, however many streams and cores it has.
//
// Data from other machines come by sources (event_sources.h): the poller waits for their
// descriptors instead of napping, and serves them. A kernel that is woken so (Task::is_woken()) is
// not looked at meanwhile, nor does anybody yield for it. A thread that waits for an operation may
// step it itself: help(). For one that has done so with each of its last operations no worker is
// woken when it submits the next; should it not wait for that one, a worker finds it a quarter of a
// millisecond later, or up to one if it has waited for all for as long (the *watchman*).
//
// Callbacks have a thread of their own: one that blocks delays other callbacks, as on CUDA, but
// never a kernel. Thread safety: any thread. Never destroyed; threads start on first use.
//
// Exit: kernels run code and use data of other libraries, whose destructors come when the process
// exits. So stepping stops then; but where the exiting thread, in the destructor of a static
// object, uses the GPUs, it goes on until that destructor is done. Operations for which nobody
// waits stay unfinished.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/thread_annotations.h"
#include "gpu/virtual/event_sources.h"
#include "gpu/virtual/operation.h"

namespace niccolite::gpu::virtual_ {

class Scheduler {
 public:
  Scheduler();
  Scheduler(const Scheduler&) = delete;

  /// False when this process cannot run work: it was forked from one whose workers ran, or no
  /// thread can be started.
  bool can_run();
  /// Ends the submission of `operation`: it runs when its predecessors are done.
  void submit(OperationPtr operation);
  int max_workers() const { return max_workers_; }
  EventSources& sources() { return sources_; }
  /// The calling thread, which is about to wait for `notify`, which opens `latch`, does the work of
  /// a worker, as long as there is one operation only, and that one leads to `notify`: a message
  /// from another machine then wakes this thread alone. Returns when the latch is open, or a worker
  /// has to go on. Other operations are left to workers: who waits may hold a lock that they take
  /// when they end.
  void help(const Operation& notify, const Latch& latch) EXCLUDES(mutex_);

 private:
  struct Batch;

  void dispatch(std::vector<OperationPtr>& ready, OperationPtr* keep_one);
  void enqueue(OperationPtr operation) EXCLUDES(mutex_);
  void enqueue_callback(OperationPtr operation) EXCLUDES(callback_mutex_);
  bool start_worker() REQUIRES(mutex_);
  bool start_callback_thread() REQUIRES(callback_mutex_);
  void wake_one() REQUIRES(mutex_);
  void sleep(std::unique_lock<std::mutex>& lock) REQUIRES(mutex_);

  void work();
  void refill(Batch& batch) EXCLUDES(mutex_);
  bool put_back(Batch& batch) EXCLUDES(mutex_);
  bool may_help(const Batch& batch, const Latch& latch) const REQUIRES(mutex_);
  bool is_for(const Batch& batch, const Operation& operation) const;
  void take(Batch& batch) REQUIRES(mutex_);
  void stop_serving(Batch& batch) EXCLUDES(mutex_);
  void give_up_polling(Batch& batch) REQUIRES(mutex_);
  void nap(Batch& batch, std::unique_lock<std::mutex>& lock) REQUIRES(mutex_);
  void nap_or_sleep(Batch& batch, std::unique_lock<std::mutex>& lock) REQUIRES(mutex_);
  void run(Batch& batch);
  void run_callbacks();
  void stop_at_exit();
  void stop_stepping();
  void resume_in_destructor();

  const int max_workers_;
  EventSources sources_;
  std::mutex mutex_;
  std::condition_variable sleepers_wake_;
  std::condition_variable poller_wake_;
  std::deque<OperationPtr> queue_ GUARDED_BY(mutex_);
  int workers_ GUARDED_BY(mutex_) = 0;
  int sleeping_ GUARDED_BY(mutex_) = 0;
  int running_ GUARDED_BY(mutex_) = 0;  // operations that workers hold in their batches
  bool has_poller_ GUARDED_BY(mutex_) = false;
  uint64_t helped_ GUARDED_BY(mutex_) = 0;          // operations, by threads that waited for them
  bool wants_watchman_ GUARDED_BY(mutex_) = false;  // they were helped lately
  bool has_watchman_ GUARDED_BY(mutex_) = false;    // a worker that sleeps
  bool is_unannounced_ GUARDED_BY(mutex_) = false;  // something in the queue, to workers
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> exiting_{false};  // for good
  pthread_t exiting_thread_{};        // meaningful once exiting_
  std::condition_variable stopped_;

  // Batches that advanced something, in the whole process; a hint for when to give up polling.
  alignas(64) std::atomic<uint64_t> progress_{0};
  std::atomic<bool> started_{false};

  std::mutex callback_mutex_;
  std::condition_variable callback_wake_;
  std::deque<OperationPtr> callbacks_ GUARDED_BY(callback_mutex_);
  bool callback_thread_ GUARDED_BY(callback_mutex_) = false;
};

/// The process's scheduler.
Scheduler& scheduler();

}  // namespace niccolite::gpu::virtual_
