// ProxyProfile: the events of a communicator's proxies for a profiler plug-in
// (transport/observer.h). Proxies carry the slots of connections and know no operations. But each
// operation has a known number of steps on each channel of each connection, and takes them in the
// order in which operations begin. So counting tells to which operation a step belongs.
//
//   operation ── its share of a channel ── step ── the network plug-in's events of the step
//
// A sender's step waits for the kernel, then for the network. A receiver's step waits for the
// network, then for the kernel, until it has read the slot or the operation has ended. Thread
// safety: any thread; the plug-in is called under the lock, which nothing else takes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/thread_annotations.h"
#include "observe/profiler.h"
#include "transport/observer.h"

namespace niccolite::profiling {

/// The steps of one operation on one channel of one connection that a proxy carries.
struct ProxyShare {
  int peer = -1;
  int tag = 0;  // of the connection
  executor::Protocol protocol = executor::Protocol::Simple;
  bool is_send = false;
  uint32_t channel = 0;
  uint32_t steps = 0;
  uint32_t chunk_bytes = 0;
};

class ProxyProfile {
 public:
  explicit ProxyProfile(std::shared_ptr<observe::Profiler> profiler)
      : profiler_(std::move(profiler)) {}

  /// `refresh` calls begin() for operations that have begun and were not told. It is called when a
  /// step comes that belongs to no known operation. Before the first step; called without the lock.
  void refresh_by(std::function<void()> refresh) { refresh_ = std::move(refresh); }

  /// The operation has begun: its share's steps are the next ones. Steps of `operation` null are
  /// counted alike.
  void begin(observe::ProfilerHandle operation, const ProxyShare& share) EXCLUDES(mutex_);
  /// All that has begun has ended: whatever was received has been read.
  void end_receives() EXCLUDES(mutex_);

  void step(const transport::ProxyStep& step, transport::ProxyStepState state) EXCLUDES(mutex_);
  bool wants_state() const EXCLUDES(mutex_);
  void tell(transport::ProxyState state) EXCLUDES(mutex_);
  /// observe::NetworkEvents' name of a step that is on its way; null: nobody wants to hear.
  void* name_of(const transport::ProxyStep& step) EXCLUDES(mutex_);
  /// Stops all events, and lets go of the plug-in.
  void close() EXCLUDES(mutex_);

 private:
  using Handle = observe::ProfilerHandle;
  using Name = std::tuple<int, int, executor::Protocol, bool, uint32_t>;
  struct Step {
    uint64_t number = 0;  // of the channel
    Handle event = nullptr;
    void* name = nullptr;  // observe::NetworkEvents'
  };
  struct Operation {
    Handle event = nullptr;
    uint32_t steps = 0, begun = 0, done = 0;
    Handle next = nullptr;    // the step that waits for the kernel, or the network
    std::deque<Step> open{};  // the steps after it
  };
  struct Line {
    std::deque<Operation> operations;
    uint64_t strays = 0;         // sender: steps on their way that are nobody's
    std::deque<uint64_t> early;  // receiver: steps that came before their operation began
  };

  static Name name_of_line(const transport::ProxyStep& step) {
    return {step.peer, step.tag, step.protocol, step.is_send, step.channel};
  }
  static Operation* next_of(Line& line);
  bool lacks_operation(const transport::ProxyStep& step) EXCLUDES(mutex_);
  void wait_for_next(Operation& operation, bool is_send) REQUIRES(mutex_);
  void move_on(Operation& operation, bool is_send, uint64_t number, uint32_t bytes)
      REQUIRES(mutex_);
  void finish_step(Operation& operation) REQUIRES(mutex_);
  void finish(Operation& operation) REQUIRES(mutex_);
  void finish_sent(Line& line) REQUIRES(mutex_);
  void finish_read(Line& line, uint64_t last) REQUIRES(mutex_);

  std::shared_ptr<observe::Profiler> profiler() const EXCLUDES(mutex_);

  std::function<void()> refresh_;
  mutable std::mutex mutex_;
  std::shared_ptr<observe::Profiler> profiler_ GUARDED_BY(mutex_);  // null once it is closed
  std::map<Name, Line> lines_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::profiling
