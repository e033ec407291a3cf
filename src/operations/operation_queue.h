// OperationQueue: from the calls of one communicator to work on streams. Calls are *prepared*
// (planned: may allocate), *connected* (may wait for peers' processes) and then *launched* (one
// call of the driver each). Groups take each step for all before they take the next for any. What
// is prepared and connected is remembered: repeating a call, or a group of the same calls, only
// launches. Thread safety: one thread at a time.
//
// Its functions are in files by subject: operation_queue.cc runs calls, prepared_plans.cc plans and
// remembers them, buffer_advertisements.cc chooses what peers are offered.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "calls/call_log.h"
#include "calls/task.h"
#include "executor/launch.h"
#include "operations/reach_history.h"
#include "operations/scratch.h"
#include "operations/stream_order.h"

// Whoever includes a communicator includes this file: what is only pointed to is not defined here.
namespace niccolite::profiling {
class Profiling;
}  // namespace niccolite::profiling
namespace niccolite::planner {
struct Settings;
}
namespace niccolite::registry {
class BufferExport;
class BufferExports;
class Windows;
}  // namespace niccolite::registry
namespace niccolite::transport {
class Endpoint;
}

namespace niccolite::operations {

struct Batch;
struct KnownGroup;
struct KnownLaunch;
class Launcher;
struct LaunchOptions;
class LaunchOrder;
class MessageAgreement;
class PlanAgreement;
struct Planned;
struct Plans;
class Tuning;

/// One launch with its buffers: what launch() wants.
struct Ready {
  std::shared_ptr<Launcher> launcher;      // null: `buffers` are copied, each from input to output
  std::shared_ptr<Planned> planned;        // until connect(), which makes the launcher
  std::vector<uint32_t> tasks;             // by work: which of the group's tasks it carries out
  std::vector<uint32_t> outputs;           // the same: whose output it has (Batch::outputs)
  std::vector<calls::Call> group;          // in the first launch of a group to be remembered: its
                                           // calls; else empty
  std::vector<calls::Call> calls;          // by work
  std::vector<executor::Buffers> buffers;  // the same
  std::vector<gpu::StreamHandle> streams;  // of the calls; the launch is on the first
  std::vector<size_t> bytes;               // of each copy
  void* launched = nullptr;                // Task::launched, of one task alone
  bool is_beside = false;                  // Batch::is_beside
};

class OperationQueue {
 public:
  /// `endpoint` and `log` are null for a communicator of one rank. All outlive the queue.
  /// `graphs_mix`, `graphs`: see StreamOrder.
  OperationQueue(gpu::Machine& machine, int device, int rank, const planner::Settings& settings,
                 transport::Endpoint* endpoint, executor::ControlWords* control,
                 calls::CallLog* log, bool graphs_mix = true,
                 std::shared_ptr<GraphUses> graphs = std::make_shared<GraphUses>());
  ~OperationQueue();

  /// Before the first operation: ranks of other processes are offered buffers that they can map
  /// (registry/buffer_exports.h), which outlive the operations.
  void open_buffers(registry::BufferExports& exports);
  /// The same, where all ranks can reach all buffers: plans of what is captured, which is so on all
  /// ranks or on none, are those for buffers that they reach, and plans of live collectives are
  /// when the ranks agree. `agreement` outlives the operations.
  void plan_by(PlanAgreement& agreement);
  /// The same: of live messages, those are planned for the receiver's buffer of which both ends
  /// know it. `agreement` outlives the operations.
  void plan_messages_by(MessageAgreement& agreement) { message_agreement_ = &agreement; }
  /// The same: rank 0's tuner plug-in decides. `tuning` outlives the queue.
  void tune(Tuning& tuning);
  /// The same: live operations begin in an order with those of other communicators.
  void order_launches(std::shared_ptr<const observe::Recorder> recorder);
  /// The same: a profiler hears of the launches. `profiling` outlives the queue.
  void profile(profiling::Profiling& profiling) { profiling_ = &profiling; }

  /// One collective by itself, of more than 0 elements: prepares, waiting for peers `connect_time`
  /// at most, and launches. Allocates nothing when it has been prepared before.
  Status run(const calls::Task& task, std::chrono::milliseconds connect_time);

  /// A group of these calls, if it has been connected before and all are on one stream: launches
  /// it, and allocates nothing. False: it is to be prepared. Both set Call::goes_direct.
  Result<bool> run_known(std::span<calls::Task> tasks);

  /// The calls of a group, which outlive the result. Collectives have more than 0 elements.
  Result<std::vector<Ready>> prepare(std::span<calls::Task> tasks);
  Status connect(std::span<Ready> launches, const Deadline& deadline);
  Status launch(const Ready& ready);
  /// From now on peers are offered buffers that lie in windows (executor/protocol/advertisement.h),
  /// and what is prepared is prepared for it. `plans_for_it`: plans are those for buffers that all
  /// ranks reach. All ranks between the same operations; may be repeated. `windows` outlive the
  /// queue, or its operations.
  void open_windows(const registry::Windows& windows, bool plans_for_it);
  /// Waits until everything launched is done, launches of graphs included; false at the deadline.
  Result<bool> drain(Deadline deadline) { return order_.drain(deadline); }
  /// As StreamOrder::mark().
  Result<std::shared_ptr<gpu::Event>> mark() { return order_.mark(); }
  Scratch& scratch() { return scratch_; }
  /// Microseconds that the calls of a group would take.
  Result<double> predict(std::span<const calls::Task> tasks);

 private:
  /// A launcher with memory that is remembered no more, and an event after its last use, once it
  /// has none to come.
  struct Retired {
    std::shared_ptr<Launcher> launcher;
    std::shared_ptr<gpu::Event> last_use;
  };

  // Running (operation_queue.cc).
  /// Of the operations that come now: by run(), run_known() and prepare().
  Status choose_plans(std::span<const calls::Task> tasks);
  Status choose_plans_of_messages(std::span<calls::Task> tasks);
  Status before(gpu::StreamHandle stream);
  Status after(gpu::StreamHandle stream);
  Status queue(Launcher& launcher, std::span<const calls::Call> calls,
               std::span<const executor::Buffers> buffers, LaunchOptions options);
  /// Has LaunchOptions::launched recorded as the kernel begins, or right before it.
  Status record_launch(LaunchOptions& options);
  Status record(void* launched, gpu::StreamHandle stream);
  /// Do launches of these calls depend on nothing but the calls, the buffers and the stream?
  static bool may_be_known(std::span<const calls::Task> tasks);
  Status check_events(std::span<const calls::Task> tasks) const;
  Status launch_known(KnownGroup& group, std::span<const calls::Task> tasks);
  Status launch_logged(Launcher& launcher, std::span<const calls::Call> calls,
                       std::span<const executor::Buffers> buffers, LaunchOptions options,
                       calls::CallLog::Joined joined = calls::CallLog::Joined::Perhaps);
  Status launch_profiled(Launcher& launcher, std::span<const calls::Call> calls,
                         std::span<const executor::Buffers> buffers, LaunchOptions options);
  void collect_buffers(const KnownLaunch& known, std::span<const calls::Task> tasks,
                       std::vector<executor::Buffers>& buffers) const;
  Status check_captures(std::span<const calls::Task> tasks);
  bool is_copy(const calls::Call& call) const { return rank_alone_ && !call.request.op.scales(); }
  Status copy(const executor::Buffers& buffers, size_t bytes, gpu::StreamHandle stream);

  // Planning, binding and remembering (prepared_plans.cc).
  Result<Planned> plan_one(const calls::Call& call);
  Result<Planned> plan_batch(const Batch& batch, std::string name);
  Status plan_list(const Batch& batch, Planned& planned);
  void note_plan(const Planned& planned) const;
  Result<std::shared_ptr<Launcher>> bind(Planned planned, const Deadline& deadline);
  std::shared_ptr<Launcher> find(const planner::Request& request) const;
  std::shared_ptr<Launcher> find(const std::string& name) const;
  template <typename Map, typename Key>
  void remember(Map& map, Key&& key, const std::shared_ptr<Launcher>& launcher);
  std::vector<Ready> recall(const KnownGroup& group, std::span<const calls::Task> tasks) const;
  void remember_group(std::span<Ready> launches);
  void forget(Plans& plans);
  void forget_groups(Plans& plans);
  void retire(std::shared_ptr<Launcher> launcher);
  bool is_over(Retired& retired);

  // What peers are offered (buffer_advertisements.cc).
  const uint64_t* shifts_of(const void* pointer, size_t bytes);
  executor::Buffers with_shifts(executor::Buffers buffers);
  executor::Buffers advertise(executor::Buffers buffers, const calls::Call& call);
  /// Of a buffer with these shifts; null: it lies in a window.
  const registry::BufferExport* export_of(const uint64_t* shifts) const;
  static constexpr int kByAll = -1;
  /// What became of a buffer that has these shifts, for rank `by`, or for all (kByAll).
  ReachHistory::Use use_of(const void* buffer, size_t bytes, const uint64_t* shifts, int by);
  bool is_of_host(const void* buffer) const;
  void note_use(const executor::Buffers& buffers);
  void note_openness(const Launcher& launcher, std::span<const calls::Call> calls,
                     std::span<const executor::Buffers> buffers);
  void note_message(const calls::Call& call, const executor::Buffers& buffers);
  void note_without_advertisements(const Launcher& launcher, std::span<const calls::Call> calls,
                                   std::span<const executor::Buffers> buffers);

  gpu::Machine& machine_;
  const int device_;
  const bool rank_alone_;
  transport::Endpoint* const endpoint_;
  executor::ControlWords* const control_;
  calls::CallLog* const log_;
  Scratch scratch_;
  const registry::Windows* windows_ = nullptr;  // once they are open
  registry::BufferExports* exports_ = nullptr;  // of ranks in several processes
  using Uses = std::vector<std::shared_ptr<const registry::BufferExport>>;
  Uses used_;                               // by the launch in progress
  std::vector<executor::Buffers> buffers_;  // of the launch in progress of a known group
  std::vector<executor::Buffers> seen_;     // of the launch in progress, as peers see them
  StreamOrder order_;
  std::optional<gpu::Capture> capture_;  // of the first task's stream, once choose_plans() asked
  gpu::Event join_event_;                // of the streams of a batch

  std::unique_ptr<LaunchOrder> launch_order_;      // null: in no order
  profiling::Profiling* profiling_ = nullptr;      // nobody profiles
  PlanAgreement* agreement_ = nullptr;             // null: plain_ is for all live operations
  uint32_t kind_ = 0;                              // PlanAgreement::kind_of() those that come now
  MessageAgreement* message_agreement_ = nullptr;  // null: no live message is Call::goes_direct
  const std::unique_ptr<Plans> plain_;
  std::unique_ptr<Plans> agreed_;    // of live operations, for buffers that all ranks reach
  std::unique_ptr<Plans> captured_;  // of captured ones, for such buffers; else plain_ is for them
  Plans* plans_;
  std::vector<Retired> retired_;
};

}  // namespace niccolite::operations
