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
// Callbacks have a thread of their own: one that blocks delays other callbacks, as on CUDA, but
// never a kernel. Thread safety: any thread. Never destroyed; threads start on first use.
//
// Exit: kernels run code and use data of other libraries, whose destructors come when the process
// exits. So stepping stops then; but where the exiting thread, in the destructor of a static
// object, uses the GPUs, it goes on until that destructor is done. What nobody waits for stays
// where it is.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/thread_annotations.h"
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

 private:
  struct Batch;

  void dispatch(std::vector<OperationPtr>& ready, OperationPtr* keep_one);
  void enqueue(OperationPtr operation) EXCLUDES(mutex_);
  void enqueue_callback(OperationPtr operation) EXCLUDES(callback_mutex_);
  bool start_worker() REQUIRES(mutex_);
  bool start_callback_thread() REQUIRES(callback_mutex_);
  void wake_one() REQUIRES(mutex_);

  void work();
  void refill(Batch& batch) EXCLUDES(mutex_);
  void nap_or_sleep(Batch& batch, std::unique_lock<std::mutex>& lock) REQUIRES(mutex_);
  void run(Batch& batch);
  void run_callbacks();
  void stop_at_exit();
  void stop_stepping();
  void resume_in_destructor();

  const int max_workers_;
  std::mutex mutex_;
  std::condition_variable sleepers_wake_;
  std::condition_variable poller_wake_;
  std::deque<OperationPtr> queue_ GUARDED_BY(mutex_);
  int workers_ GUARDED_BY(mutex_) = 0;
  int sleeping_ GUARDED_BY(mutex_) = 0;
  int running_ GUARDED_BY(mutex_) = 0;  // operations that workers hold in their batches
  bool has_poller_ GUARDED_BY(mutex_) = false;
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
