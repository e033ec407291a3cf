// Profiling: the events of one communicator for its profiler plug-in (observe/profiler.h): the
// calls of the API as groups collect them, the operations as they are launched, and the channels of
// their kernels. Virtual GPUs call when launches begin and end (observe/recorder.h); a thread reads
// the marks of real GPUs' kernels (observe/kernel_marks.h).
//
//   group's call ─┬─ call ── operation ─┬─ channels of its kernel
//                 └─ launch             └─ proxies (proxy_profile.h)
//
// An operation of a graph is started anew at each replay. Communicators without a profiler have
// none of this: their calls only test a null pointer.
// Thread safety: any thread; launch() by one at a time.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "calls/task.h"
#include "executor/launch.h"
#include "observe/profiler.h"
#include "profiling/proxy_profile.h"

namespace niccolite::profiling {

/// Describes how a launch is carried out, for profilers.
struct LaunchForm {
  struct Work {
    const char* algorithm = "";  // as log lines have it; a constant
    uint32_t first_channel = 0, channels = 0;
    // Real GPUs: channel c, counted from the first, is CTA first_cta + c / patterns + c % patterns
    // * replicas of the launch.
    uint32_t first_cta = 0, patterns = 1, replicas = 0;

    std::vector<ProxyShare> proxies{};

    uint32_t cta_of(uint32_t channel) const {
      return first_cta + channel / patterns + channel % patterns * replicas;
    }
  };
  const char* protocol = "";
  uint8_t warps = 0;  // of a CTA; 0: the executor's choice
  std::vector<Work> works;
};

/// The name as a constant: plug-ins keep pointers.
const char* constant_name(const std::string& name);

class Profiling final : public observe::Recorder::Listener {
 public:
  /// `rank`: the profiled one.
  Profiling(const std::shared_ptr<observe::Profiler>& profiler, int rank);

  ~Profiling() override { close(); }

  /// Reads the marks of a real GPU's kernels, before the first launch; the marks outlive close().
  Status read_marks(const observe::KernelMarks& marks);

  /// The profile of the communicator's proxies, for observers of their steps.
  const std::shared_ptr<ProxyProfile>& proxies() const { return proxies_; }

  /// Null once it is closed.
  std::shared_ptr<observe::Profiler> profiler() const EXCLUDES(mutex_);
  /// The plug-in hears all events so far and no later ones, and may end.
  void close() EXCLUDES(mutex_);

  /// A call that a group has taken in; its launch comes later, or never: see forget(). Ends the
  /// call's event.
  void add(const calls::Task& task, bool is_captured, observe::ProfilerHandle group_call)
      EXCLUDES(mutex_);
  /// Calls of this group that were not launched will not be.
  void forget(observe::ProfilerHandle group_call) EXCLUDES(mutex_);

  /// A launch of these calls: `run` queues it. `number`: as the recorder has it; 0: it does not
  /// tell.
  struct Launch {
    uint64_t number = 0;
    const LaunchForm* form = nullptr;  // outlives the launch, and the graph that it is captured in
    std::span<const calls::Call> calls{};
    std::span<const executor::Buffers> buffers{};
    void* stream = nullptr;
    bool is_captured = false;
  };
  template <typename Run>
  Status launch(const Launch& launch, Run&& run) {
    Started started = start(launch);
    Status status = run();
    finish(launch, started, status.is_ok());
    return status;
  }

  void begun(uint64_t launch) override EXCLUDES(mutex_);
  void ended(uint64_t launch) override EXCLUDES(mutex_);

 private:
  struct Pending {
    calls::Call call;
    observe::ProfilerHandle event = nullptr, group_call = nullptr;
  };
  // One operation of a launch, with all that its event says.
  struct Operation {
    calls::Call call;
    executor::Buffers buffers;
    uint64_t sequence = 0;
    observe::ProfilerHandle call_event = nullptr;
    LaunchForm::Work work;
  };
  // One channel of the kernel of an operation.
  struct Channel {
    size_t operation = 0;
    uint32_t number = 0, cta = 0;
    observe::ProfilerHandle handle = nullptr;
    uint64_t begun = 0;     // marked kernels: when it was last seen to begin
    bool has_ended = true;  // since
  };
  struct Flight {
    std::vector<Operation> operations;
    const char* protocol = "";
    uint8_t warps = 0;
    void* stream = nullptr;
    bool is_captured = false;
    std::vector<observe::ProfilerHandle> handles;  // of the operations under way
    std::vector<Channel> channels;                 // of the executor
    uint64_t begun = 0;  // marked kernels: the first CTA of the last run that was seen
  };
  struct Started {
    observe::ProfilerHandle launch = nullptr, group = nullptr;
    std::shared_ptr<Flight> flight;
  };

  Started start(const Launch& launch) EXCLUDES(mutex_);
  void finish(const Launch& launch, const Started& started, bool is_queued) EXCLUDES(mutex_);
  /// The oldest pending call for which `is_it` holds; an empty one: there is none.
  template <typename Predicate>
  Pending take(Predicate is_it) EXCLUDES(mutex_);
  void add_receive_from_self(Flight& flight) EXCLUDES(mutex_);
  std::shared_ptr<Flight> flight_of(uint64_t launch) EXCLUDES(mutex_);
  void begin_operations(observe::Profiler& profiler, Flight& flight) const;
  static void start_channel(observe::Profiler& profiler, Flight& flight, Channel& channel,
                            uint64_t time);
  static void stop_channel(observe::Profiler& profiler, Channel& channel, uint64_t time);
  void read_marks_until_closed() EXCLUDES(mutex_);
  /// True when there was any news.
  bool look_at_marks() EXCLUDES(mutex_) EXCLUDES(marks_mutex_);
  bool look_at(observe::Profiler& profiler, uint64_t launch, Flight& flight, bool* is_over) const;
  static void start_operations(observe::Profiler& profiler, Flight& flight,
                               observe::ProfilerHandle group);

  mutable std::mutex mutex_;
  const int rank_;
  std::shared_ptr<observe::Profiler> profiler_ GUARDED_BY(mutex_);
  std::vector<Pending> pending_ GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Flight>> flights_ GUARDED_BY(mutex_);  // by launch
  std::array<uint64_t, schedule::kCollectives + 1> sequences_{};  // of live operations, by function
  const std::shared_ptr<ProxyProfile> proxies_;
  observe::KernelMarks marks_;  // none: the recorder calls
  std::mutex marks_mutex_;      // held while marks are read: flights change then alone
  bool is_closing_ GUARDED_BY(mutex_) = false;
  std::condition_variable news_;  // a flight, or is_closing_
  Thread reader_;                 // last: joined first
};

}  // namespace niccolite::profiling
