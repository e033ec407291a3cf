// Operation: one piece of work of a stream or of one replay of a graph. Operations form a directed
// acyclic graph: each counts its unfinished predecessors and knows its successors. A stream is the
// chain from operation to operation, an event points at one operation, the legacy default stream is
// a set of edges; whoever has no unfinished predecessor is handed to the scheduler.
//
// Life: created holding itself back; after() any number of times; submit() once; run by a worker
// (step() until Done); finish() drops the work, then marks it done and releases the successors.
// Thread safety: after() and submit() by the submitting thread; is_done() and finished_at() by any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/memory.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::gpu::virtual_ {

struct Event;
struct Graph;
class Operation;
using OperationPtr = std::shared_ptr<Operation>;

/// Wakes one waiting host thread.
class Latch {
 public:
  void open();
  /// False when the deadline passed first.
  bool wait(Deadline deadline);
  bool is_open() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ GUARDED_BY(mutex_) = false;
};

// ---- the work of an operation; its target may lie in the range of a multicast object
struct Nothing {};  // a point in the order: event record and wait, fork and join
struct Copy {       // `slices` times `rows` rows of `width` bytes
  std::byte* target;
  const std::byte* source;
  size_t width;
  size_t rows = 1;
  size_t target_pitch = 0;  // from row to row
  size_t source_pitch = 0;
  size_t slices = 1;
  size_t target_slice = 0;  // from slice to slice
  size_t source_slice = 0;
  std::shared_ptr<std::byte[]> staged =
      nullptr;             // holds `source` when that was pageable host memory
  MulticastPlace place{};  // of the target
};
struct Set {
  std::byte* target;
  uint32_t value;  // of an element
  size_t width;    // in bytes
  size_t rows = 1;
  size_t pitch = 0;
  size_t element_bytes = 1;  // 1, 2 or 4; target, width and pitch are multiples of it
  MulticastPlace place{};    // of the target
};
inline bool is_empty(const Copy& copy) {
  return copy.width == 0 || copy.rows == 0 || copy.slices == 0;
}
inline bool is_empty(const Set& set) { return set.width == 0 || set.rows == 0; }

/// Returns the span from the first byte to the last of a copy or fill that is not empty. None: it
/// moves or spans more bytes than a number can say.
std::optional<size_t> target_span(const Copy& copy);
std::optional<size_t> source_span(const Copy& copy);
std::optional<size_t> target_span(const Set& set);

struct HostCall {  // on the callback thread: `call`, or the program's `function`
  std::function<void()> call;
  void (*function)(void*) = nullptr;
  void* data = nullptr;
};
struct KernelLaunch {
  std::shared_ptr<Kernel> kernel;
};
struct RecordEvent {  // node of a graph: each replay records anew
  std::shared_ptr<Event> event;
  void* handle = nullptr;  // of the event
};
struct WaitEvent {  // node of a graph: each replay waits for the event as it is at launch
  std::shared_ptr<Event> event;
  void* handle = nullptr;
};
struct ChildGraph {  // node of a graph that another graph is a part of; executables have its nodes
  std::shared_ptr<Graph> graph;
  void* handle;  // of that graph
};
struct WaitValue {  // for a word of `bytes`, 4 or 8, in memory
  const void* address;
  uint64_t value;
  size_t bytes;
  Comparison comparison;
};
struct WriteValue {
  void* address;
  uint64_t value;
  size_t bytes;
  MulticastPlace place{};  // of the address
};
struct Notify {
  std::shared_ptr<Latch> latch;
};
struct KeepGraph {  // the last operation of a replay: keeps the graph's objects until the replay is
                    // over
  std::shared_ptr<const Graph> graph;
};
using Work = std::variant<Nothing, Copy, Set, HostCall, KernelLaunch, RecordEvent, WaitEvent,
                          WaitValue, WriteValue, ChildGraph, Notify, KeepGraph>;

/// The runner of an operation: none (it is done as soon as its predecessors are), a worker, or the
/// callback thread.
enum class Runner : uint8_t { Inline, Worker, CallbackThread };

class Operation {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Operation(Work work) : work_(std::move(work)) {}
  Operation(const Operation&) = delete;

  /// `self` starts only when `predecessor` is done. Null and finished predecessors are fine.
  static void after(const OperationPtr& self, const OperationPtr& predecessor);
  /// Does `later` wait for it, through a few others at most? False: not that it can be told.
  bool leads_to(const Operation& later) const;
  /// Instead of submit(): lets go of its successors.
  void abandon();
  /// Takes away one hold; true when it was the last one, so that the operation must be run now.
  bool release() {
    // acq_rel: each predecessor releases its writes, and the last one to arrive acquires all of
    // them for the runner.
    return holds_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  Runner runner() const;
  /// Workers only. A bounded amount of the work.
  Progress step();
  /// Task::is_woken(): after a step that would block.
  bool is_woken() const { return task_ != nullptr && task_->is_woken(); }
  /// The callback thread only.
  void call_host();
  /// Drops the work, marks the operation done and gives the successors that became ready to
  /// `ready`.
  void finish(std::vector<OperationPtr>& ready);

  bool is_done() const {
    // Pairs with [done] in finish().
    return done_.load(std::memory_order_acquire);
  }
  /// When is_done().
  Clock::time_point finished_at() const { return finished_at_; }

 private:
  Work work_;                   // touched by the runner only, once submitted
  std::unique_ptr<Task> task_;  // of a KernelLaunch, once started
  size_t position_ = 0;         // bytes done of a Copy or Set
  Clock::time_point finished_at_;
  std::atomic<uint32_t> holds_{1};  // unfinished predecessors, and 1 until submitted
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::vector<OperationPtr> successors_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::gpu::virtual_
