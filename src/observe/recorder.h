// Recorder: the event stream of one communicator on one rank: its calls, plans, connections and
// launches, the observations of executors, proxies and the watch, and errors. There is no second
// record: the log of calls, verdicts, the flight recorder's files (dumps.h), stragglers and
// profilers read this one. Records have a fixed size and are written without locks, whether anybody
// will read them or not: 12 ns for each call (bench/call_log_bench).
//
// Records of one subject do not push out records of another: calls, captured calls, launches, steps
// of proxies and the rest have a ring each. The marks of real GPUs' kernels (kernel_marks.h) are
// read in their memory, and appear as launches that begin and end.
// Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_annotations.h"
#include "observe/clock.h"
#include "observe/event.h"
#include "observe/event_ring.h"
#include "observe/gpu_clock.h"
#include "observe/kernel_marks.h"

namespace niccolite::observe {

class Recorder {
 public:
  static constexpr size_t kKept = 512;          // calls, launches
  static constexpr size_t kKeptCaptured = 256;  // calls of graphs
  static constexpr size_t kKeptSteps = 512;     // of proxies
  static constexpr size_t kKeptOthers = 128;

  /// Hears of each begin and end of a launch, on the executor's thread. It must not wait for
  /// executors.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void begun(uint64_t launch) = 0;
    virtual void ended(uint64_t launch) = 0;
  };

  Recorder();
  Recorder(const Recorder&) = delete;

  /// Sets the listener, before the first launch.
  void set_listener(std::shared_ptr<Listener> listener) { listener_ = std::move(listener); }
  /// Reads the marks of a real GPU's kernels, before the first launch. The memory outlives all
  /// readers.
  void read_marks(const KernelMarks& marks) { marks_ = marks; }
  const KernelMarks& marks() const { return marks_; }

  /// Adds an event that has no writer of its own.
  void add(const Event& event) { ring_of(event.kind).add(event); }

  /// Adds a call, with numbers of its writer: `order` from 0, among all calls; `place` from 0,
  /// among calls outside of graphs. Called by one thread at a time.
  void add_call(uint64_t order, uint64_t place, const Event& event) {
    calls_.write(place % kKept, order, event);
  }
  /// Adds a call that a graph has captured. A program may capture one call thousands of times; only
  /// the different calls matter, so of equal calls the newest is kept.
  void add_captured_call(uint64_t order, const Event& event);
  /// The calls that are kept; the ticket is the order.
  std::vector<EventRing::Entry> calls() const { return calls_.entries(); }
  std::vector<EventRing::Entry> captured_calls() const { return captured_.entries(); }

  /// The begin of a launch, from an executor that knows it. Launches of one communicator begin in
  /// the order of their streams, so that the last is the newest.
  void begin(uint64_t launch) {
    mark(begun_, EventKind::Begun, launch);
    if (listener_ != nullptr) [[unlikely]]
      listener_->begun(launch);
  }
  void end(uint64_t launch) {
    if (listener_ != nullptr) [[unlikely]]
      listener_->ended(launch);
    mark(ended_, EventKind::Ended, launch);
  }
  /// The launch that the stream has come to. A launch in a graph begins and ends again and again.
  using Progress = KernelMarks::Progress;  // begun 0: or the executor does not tell
  Progress progress() const;
  /// True if all `ctas` CTAs of the newest launch outside of graphs have begun. False if the
  /// executor does not tell, and when a graph was launched after it.
  bool has_begun(uint64_t launch, uint32_t ctas) const;

  /// Compares the clocks of host and GPU, if kernels tell: the more often, the better.
  void look() EXCLUDES(mutex_);
  /// Compares the clocks when a launch is about to be queued: programs often wait for the launch
  /// before, so that its mark is fresh.
  void before_launch(uint64_t now) {
    if (marks_) [[unlikely]]
      look_at_first_cta(now);
  }
  /// Returns the possible error of the times that kernels record, in nanoseconds; 0: executors
  /// record them.
  uint64_t uncertainty() const EXCLUDES(mutex_);

  /// Returns the events by time. Events that are being written meanwhile may be absent.
  std::vector<Event> events() const EXCLUDES(mutex_);

 private:
  struct Mark {
    std::atomic<uint64_t> last{0}, count{0};
  };

  EventRing& ring_of(EventKind kind);
  void mark(Mark& mark, EventKind kind, uint64_t launch) {
    Event event;
    event.time = ticks();
    event.launch = launch;
    event.kind = kind;
    launches_.add(event);
    mark.last.store(launch, std::memory_order_relaxed);  // published by the count
    // [release] pairs with progress(): a thread that sees the count finds the event.
    mark.count.fetch_add(1, std::memory_order_release);
  }
  void look_at_first_cta(uint64_t now) EXCLUDES(mutex_);
  void add_marks(std::vector<Event>& events) const EXCLUDES(mutex_);

  std::shared_ptr<Listener> listener_;  // nearly always null
  KernelMarks marks_;                   // none on virtual GPUs
  EventRing calls_{kKept}, captured_{kKeptCaptured}, launches_{kKept}, others_{kKeptOthers};
  std::atomic<EventRing*> steps_{nullptr};  // made when a proxy tells of the first
  std::unique_ptr<EventRing> made_steps_ GUARDED_BY(mutex_);
  Mark begun_, ended_;
  mutable std::mutex mutex_;
  mutable GpuClock gpu_clock_ GUARDED_BY(mutex_);
  std::optional<Clock> clock_ GUARDED_BY(mutex_);  // of the last look()
  uint64_t looked_ GUARDED_BY(mutex_) = 0;         // before a launch; ticks
};

}  // namespace niccolite::observe
