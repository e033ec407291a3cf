// OperationQueue: from the calls of one communicator to work on streams. The calls of a group go
// one way, and a call by itself is a group of one:
//
//   choose     looks for the launches of the same calls; else makes batches of them and plans these
//   connect    new launches alone: may wait for the processes of peers; they are remembered then
//   launch     joins the streams; offers buffers to peers, calls the driver and logs, once a launch
//   account    tells the agreements and the orders that the group has been launched
//
// A step passes its results on as an argument (Chosen, Underway). A group of several
// communicators takes each step for all of them before it takes the next for any. Thread safety:
// one thread at a time.
//
// Its functions are in files by subject: operation_queue.cc takes the steps, prepared_plans.cc
// binds plans to connections and lets go of them, buffer_advertisements.cc chooses the buffers that
// peers are offered.
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
#include "registry/captured_buffer.h"

// Every file that includes a communicator includes this file, so types that it only points to are
// not defined here.
namespace niccolite::profiling {
class Profiling;
}  // namespace niccolite::profiling
namespace niccolite::planner {
struct Settings;
}
namespace niccolite::registry {
class TeamBuffers;
class BufferExport;
class BufferExports;
class Windows;
}  // namespace niccolite::registry
namespace niccolite::transport {
class Endpoint;
}

namespace niccolite::operations {

struct GroupLaunch;
struct GroupLaunches;
class Launcher;
struct LaunchOptions;
class LaunchOrder;
class MessageAgreement;
class PlanAgreement;
struct Planned;
struct Plans;
class Tuning;

/// How the calls of one group are carried out.
struct Chosen {
  std::span<const calls::Task> tasks;      // which outlive it
  Plans* plans = nullptr;                  // by which they are planned
  std::shared_ptr<GroupLaunches> group{};  // shared with `plans`, once it is remembered there
  std::optional<gpu::Capture> capture{};   // of the first task's stream, if it had to be asked
  uint32_t kind = 0;                       // PlanAgreement::kind_of() them, where there is one
  std::vector<registry::CapturedBuffer> captured{};  // buffers that the team reaches in a graph
  bool is_new = false;                               // to be connected

  size_t launches() const;
};

class OperationQueue {
 public:
  /// The machine, and all that is pointed to, outlive the queue and its operations.
  struct Parts {
    gpu::Machine& machine;
    int device = 0;
    int rank = 0;
    const planner::Settings& settings;
    transport::Endpoint* endpoint = nullptr;  // null: of a communicator of one rank, as the log
    executor::ControlWords* control = nullptr;
    calls::CallLog* log = nullptr;
    bool graphs_mix = true;  // this and the next: see StreamOrder
    std::shared_ptr<GraphUses> graphs = std::make_shared<GraphUses>();
    /// Ranks of other processes are offered buffers that they can map. Null: there are no such
    /// ranks.
    registry::BufferExports* exports = nullptr;
    /// Where all ranks can reach all buffers. Captured operations, which are captured on all ranks
    /// or on none, are planned for such buffers, and live collectives when the ranks agree. Null
    /// elsewhere.
    PlanAgreement* agreement = nullptr;
    /// Live messages are planned for the receiver's buffer if both ends know that. Null: no live
    /// message is Call::goes_direct.
    MessageAgreement* message_agreement = nullptr;
    Tuning* tuning = nullptr;                   // rank 0's tuner plug-in decides; null: nobody's
    profiling::Profiling* profiling = nullptr;  // hears of the launches; null: nobody profiles
    /// Live operations of all communicators of the device begin in one order. Needs a log.
    bool orders_launches = false;
  };
  explicit OperationQueue(Parts parts);
  ~OperationQueue();

  /// The calls of a group, one at least; collectives have more than 0 elements. Sets
  /// Call::goes_direct.
  /// `captured`: what registry::TeamBuffers has found, if the calls are captured.
  Result<Chosen> choose(std::span<calls::Task> tasks,
                        std::vector<registry::CapturedBuffer> captured = {});
  /// Connects new launches, and remembers them for calls to come.
  Status connect(Chosen& chosen, const Deadline& deadline);
  /// Starts `count` of the connected launches, from number `first` on.
  Status launch(const Chosen& chosen, size_t first, size_t count);
  /// All steps for one group. It waits for peers `connect_time` at most, and allocates nothing when
  /// the same calls have been connected before, on one stream.
  Status carry_out(std::span<calls::Task> tasks, std::chrono::milliseconds connect_time,
                   std::vector<registry::CapturedBuffer> captured = {});

  /// From now on peers are offered buffers that lie in windows (executor/protocol/advertisement.h),
  /// and operations are prepared for it. `plans_for_it`: plans are made for buffers that all ranks
  /// reach. `team`: the addresses of a team of all ranks that reaches windows
  /// (executor::Launch::team_windows), or null. All ranks call it between the same operations; it
  /// may be repeated. `windows` outlive the queue, or its operations.
  void open_windows(const registry::Windows& windows, bool plans_for_it, std::byte* team);
  /// Live operations reach the buffers of `team` from now on, which outlives the queue, or its
  /// operations.
  void reach_by_team(const registry::TeamBuffers& team) { team_buffers_ = &team; }
  /// Waits until everything launched is done, launches of graphs included; false at the deadline.
  Result<bool> drain(Deadline deadline) { return order_.drain(deadline); }
  /// See StreamOrder::mark().
  Result<std::shared_ptr<gpu::Event>> mark() { return order_.mark(); }
  Scratch& scratch() { return scratch_; }
  /// Microseconds that the calls of a group would take, by what the ranks have agreed on so far.
  Result<double> predict(std::span<const calls::Task> tasks);

 private:
  /// A launcher with memory that is remembered no more, and an event after its last use, once it
  /// has none to come.
  struct Retired {
    std::shared_ptr<Launcher> launcher;
    std::shared_ptr<gpu::Event> last_use;
  };

  using Uses = std::vector<std::shared_ptr<const registry::BufferExport>>;
  /// Launches that are made on one stream. They collect into the queue's memory, so that launches
  /// allocate nothing, and leave it empty.
  struct Underway {
    const Chosen& chosen;
    gpu::StreamHandle stream;
    Uses& uses;                               // exports that they use
    std::vector<executor::Buffers>& buffers;  // of one launch, by work

    ~Underway() {
      uses.clear();
      buffers.clear();
    }
  };

  // The steps (operation_queue.cc).
  Status choose_launches(std::span<calls::Task> tasks, Chosen& chosen);
  Status choose_plans(Chosen& chosen);
  Status plan_launches(Chosen& chosen);
  Status check_captures(const Chosen& chosen) const;
  Status check_events(std::span<const calls::Task> tasks) const;
  Status launch_on_stream(const Chosen& chosen, gpu::StreamHandle stream,
                          std::span<GroupLaunch> launches);
  /// As many as one launch may have by LL or LL128.
  static constexpr int kMostEarlyCtas = 48;
  /// When the next launch of launch_on_stream() may begin.
  executor::AfterLast after_last(const GroupLaunch& launch, bool has_launched) const;
  Status launch_one(GroupLaunch& launch, Underway& underway, LaunchOptions& options);
  Status launch_logged(GroupLaunch& launch, Underway& underway, LaunchOptions& options);
  Status launch_profiled(const GroupLaunch& launch, Underway& underway, LaunchOptions& options);
  Status launch_offered(const GroupLaunch& launch, Underway& underway, LaunchOptions& options);
  Status copy(const GroupLaunch& launch, const Underway& underway);
  Status account(Underway& underway);
  Status keep_in_graph(gpu::StreamHandle stream, std::vector<std::shared_ptr<const void>> objects);
  Status wait_for_joined(gpu::StreamHandle stream, std::span<const gpu::StreamHandle> joined);
  Status let_joined_go_on(gpu::StreamHandle stream, std::span<const gpu::StreamHandle> joined);
  /// Has LaunchOptions::launched recorded as the kernel begins, or right before it.
  Status record_launch(LaunchOptions& options);
  Status record(void* launched, gpu::StreamHandle stream);
  bool is_copy(const calls::Call& call) const { return rank_alone_ && !call.request.op.scales(); }

  // Binding and letting go (prepared_plans.cc).
  void note_plan(const Planned& planned) const;
  Result<std::shared_ptr<Launcher>> bind(Plans& plans, Planned planned, const Deadline& deadline);
  void retire(std::vector<std::shared_ptr<Launcher>> launchers);
  void retire(std::shared_ptr<Launcher> launcher);
  bool is_over(Retired& retired);

  // The offers to peers (buffer_advertisements.cc).
  // Makes the buffers of the launch visible to peers.
  void offer_buffers(const GroupLaunch& launch, Underway& underway);
  const uint64_t* shifts_of(const void* pointer, size_t bytes, Underway& underway);
  executor::Buffers with_shifts(executor::Buffers buffers, Underway& underway);
  executor::Buffers advertise(executor::Buffers buffers, const calls::Call& call,
                              Underway& underway);
  static constexpr int kByAll = -1;
  /// Returns how a buffer with these shifts was used by rank `by`, or by all (kByAll).
  ReachHistory::Use use_of(const void* buffer, size_t bytes, const uint64_t* shifts, int by,
                           const Uses& uses) const;
  bool is_of_host(const void* buffer) const;
  void note_use(const executor::Buffers& buffers, const Underway& underway);
  void note_message(const calls::Call& call, const executor::Buffers& buffers, const Uses& uses);
  void note_openness(const GroupLaunch& launch, const Underway& underway);
  void note_without_advertisements(const GroupLaunch& launch, Underway& underway);

  gpu::Machine& machine_;
  const int device_;
  const bool rank_alone_;
  transport::Endpoint* const endpoint_;
  executor::ControlWords* const control_;
  calls::CallLog* const log_;
  registry::BufferExports* const exports_;
  PlanAgreement* const agreement_;  // null: plain_ is for all live operations
  MessageAgreement* const message_agreement_;
  profiling::Profiling* const profiling_;
  Scratch scratch_;
  const registry::Windows* windows_ = nullptr;  // once they are open
  std::byte* team_windows_ = nullptr;           // as open_windows() has it
  const registry::TeamBuffers* team_buffers_ = nullptr;
  Uses uses_;  // these two: empty but for Underway
  std::vector<executor::Buffers> buffers_;
  StreamOrder order_;
  int last_short_ctas_ = 0;  // of the last launch; 0: it was none of Launcher::is_short()
  gpu::Event join_event_;    // of the streams of a batch
  std::unique_ptr<LaunchOrder> launch_order_;  // null: in no order
  const std::unique_ptr<Plans> plain_;
  std::unique_ptr<Plans> agreed_;    // of live operations, for buffers that all ranks reach
  std::unique_ptr<Plans> captured_;  // of captured ones, for such buffers; else plain_ is for them
  std::vector<Retired> retired_;
};

}  // namespace niccolite::operations
