// CallLog: the calls of one rank on one communicator, for the day on which the ranks turn out to
// have called different things (docs/design/failures.md). It numbers the calls, writes them
// to the communicator's event stream (observe/recorder.h) and reads them there. Adding costs a few
// nanoseconds, and nothing is formatted before somebody asks. Thread safety: any thread.
//
// Numbers. Ranks that make the same calls in the same order give them the same numbers, so that
// calls can be compared one by one. Collectives count from 1, and the messages of each pair of
// ranks and direction count from 1. A call that is captured in a graph runs at every replay of the
// graph, which the host does not see. So it has no number, and after the first such call the
// numbers of its kind prove nothing any more (Numbers::provable).
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "calls/task.h"
#include "observe/recorder.h"

namespace niccolite::calls {

struct LoggedCall {
  Call call;
  uint64_t number = 0;  // 0: captured in a graph
  uint64_t order = 0;   // among all calls of this rank, from 1
  uint64_t launch = 0;  // that it was part of, from 1

  bool is_captured() const { return number == 0; }
};

/// Returns the call in an event of kind Called, or Planned.
Call call_of(const observe::Event& event);
/// Returns an event of kind Called for `call`; the other fields of the event are not set.
observe::Event event_of(const Call& call);

/// How far a count of calls has come.
struct Numbers {
  uint64_t count = 0;                // calls that have a number
  uint64_t provable = ~uint64_t{0};  // numbers up to this one may be compared with other ranks'
  friend bool operator==(const Numbers&, const Numbers&) = default;
};

class CallLog {
 public:
  /// The most calls of content(), separately for calls with and without a number.
  static constexpr size_t kKept = 256;
  static_assert(kKept <= observe::Recorder::kKept && kKept <= observe::Recorder::kKeptCaptured);

  explicit CallLog(int nranks);

  /// Has add() had the same calls of one launch before?
  enum class Joined : uint8_t { Perhaps, Before };
  /// The calls of the launch that before_launch_on() was told of, which was queued, or captured in
  /// a graph.
  void add(std::span<const Call> calls, bool is_captured, Joined joined = Joined::Perhaps)
      EXCLUDES(mutex_);
  /// Tells the log of the next launch: a live one on this stream (gpu::Streams::stream_id), or a
  /// captured one. Returns the launch's number. By one thread at a time.
  uint64_t before_launch_on(std::optional<uint64_t> stream);

  /// The events of the communicator, these calls included.
  const std::shared_ptr<observe::Recorder>& recorder() const { return recorder_; }

  struct Content {
    std::vector<LoggedCall> calls;  // oldest first
    Numbers collectives;
    Numbers sends;     // to `peer`
    Numbers receives;  // from `peer`
  };
  Content content(int peer) const EXCLUDES(mutex_);
  uint64_t collectives() const EXCLUDES(mutex_);
  /// Calls of this kind so far, captured ones once.
  uint64_t count(Collective collective) const EXCLUDES(mutex_);
  /// A call that is not logged: one-sided ones have no order that ranks could compare.
  void note_function(const char* function) EXCLUDES(mutex_);
  /// The API function of the last call, logged or noted; null: none yet.
  const char* last_function() const EXCLUDES(mutex_);
  /// The stream of all live launches so far, whose order is the stream's. None: there were several
  /// streams, a capture, or no launch.
  std::optional<uint64_t> only_stream() const;
  /// A call of the host in which ranks wait for each other. All ranks except for `excluded` make
  /// it, or it is an operation's first, which waits for the processes of the ranks that it connects
  /// with.
  struct HostCall {
    std::string function;  // "ncclCommSplit"
    uint64_t number = 0;   // among the calls of its kind on this communicator, from 1
    bool connects = false;
    std::vector<int> excluded;
    Deadline::Clock::time_point since{};
  };
  /// The rank is in such a call as long as this lives. A null log has no such calls.
  class HostCallScope {
   public:
    HostCallScope(CallLog* log, const char* function, std::vector<int> excluded = {},
                  Deadline::Clock::time_point since = Deadline::Clock::now());
    ~HostCallScope();
    HostCallScope(const HostCallScope&) = delete;

   protected:
    HostCallScope(CallLog* log, HostCall call);

   private:
    CallLog* const log_;
  };
  /// The rank connects with others for this call.
  class ConnectScope : public HostCallScope {
   public:
    ConnectScope(CallLog* log, const char* function,
                 Deadline::Clock::time_point since = Deadline::Clock::now());
  };
  std::optional<HostCall> host_call() const EXCLUDES(mutex_);
  /// A call that has not begun, since another thread's call has the communicator.
  struct BlockedCall {
    const char* function = nullptr;  // "ncclAllReduce"
    Deadline::Clock::time_point since{};
  };
  /// There is such a call as long as this lives. A null log has no such calls.
  class BlockedScope {
   public:
    BlockedScope(CallLog* log, const char* function,
                 Deadline::Clock::time_point since = Deadline::Clock::now());
    ~BlockedScope();
    BlockedScope(const BlockedScope&) = delete;

   private:
    CallLog* const log_;
    std::list<BlockedCall>::iterator place_;
  };
  /// The one that has waited for longest.
  std::optional<BlockedCall> blocked_call() const EXCLUDES(mutex_);
  /// Host calls that all ranks make, so far, with the present one.
  uint64_t host_calls() const EXCLUDES(mutex_);
  /// Was a call with this tag ever launched together with others?
  bool was_joined(uint16_t tag) const EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kNoStream = ~uint64_t{0};
  static constexpr uint64_t kSeveralStreams = kNoStream - 1;

  void note_stream(std::optional<uint64_t> stream);
  void add_call(const Call& call, bool is_captured) REQUIRES(mutex_);

  const std::shared_ptr<observe::Recorder> recorder_ = std::make_shared<observe::Recorder>();
  std::atomic<uint64_t> stream_{kNoStream};
  // The present launch. Only the launching thread uses these:
  uint64_t launch_ = 0;
  uint64_t launched_at_ = 0;  // observe::ticks()
  std::optional<uint64_t> launched_on_;
  mutable std::mutex mutex_;
  uint64_t order_ GUARDED_BY(mutex_) = 0;  // of all calls so far
  uint64_t live_ GUARDED_BY(mutex_) = 0;   // calls that have a number
  const char* last_function_ GUARDED_BY(mutex_) = nullptr;
  Numbers collectives_ GUARDED_BY(mutex_);
  std::array<uint64_t, schedule::kCollectives> counts_ GUARDED_BY(mutex_){};
  std::vector<std::array<Numbers, 2>> messages_ GUARDED_BY(mutex_);  // by peer; receives, sends
  std::optional<HostCall> host_call_ GUARDED_BY(mutex_);
  std::list<BlockedCall> blocked_calls_ GUARDED_BY(mutex_);  // the first one is the oldest
  uint64_t host_calls_ GUARDED_BY(mutex_) = 0;
  uint64_t connects_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<std::bitset<65536>> joined_ GUARDED_BY(mutex_);  // by tag; null: none
};

}  // namespace niccolite::calls
