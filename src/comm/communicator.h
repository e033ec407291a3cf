// Communicator: one rank's membership in a group of ranks that operate together. What an ncclComm_t
// points to.
//
// Life:   create ── initialize ──> Ready ── finalize ──> Finalized ── end
//           │            └── failure ──> Failed                        ^
//           └───────────────── abort, from any thread at any time ─────┘
//
// Errors: a failing call leaves a blocking communicator usable. What concerns the communicator
// itself (a lost peer, an operation of a nonblocking one) becomes its *asynchronous error*: the
// first one stays, every later call returns it. Work that is queued then goes on waiting until
// abort() or end(): what has not been done never looks done (docs/design/failures.md). Thread
// safety: one thread at a time, except abort(), end(), lifetime(), and the const getters.
//
// Its functions are in files by subject: communicator.cc has its calls, initialization.cc how it
// becomes ready, derivation.cc and suspension.cc what their
// names say, questions.cc what ranks ask each other, supervision.cc who looks after it, and
// termination.cc how it fails and ends.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "bootstrap/member.h"
#include "comm/configuration.h"
#include "comm/control.h"
#include "comm/exclusive_use.h"
#include "comm/invitation.h"
#include "comm/lifetime.h"
#include "comm/membership.h"
#include "comm/question.h"
#include "comm/rank_info.h"
#include "comm/ways.h"
#include "diagnosis/status_board.h"
#include "operations/graph_uses.h"
#include "operations/one_sided_call.h"
#include "operations/operation_queue.h"
#include "operations/operators.h"
#include "registry/registrations.h"

// The API's sources include this file: what is only pointed to is not defined here.
namespace niccolite::diagnosis {
class Stragglers;
class Watch;
class Watchdog;
}  // namespace niccolite::diagnosis
namespace niccolite::operations {
class OneSided;
}  // namespace niccolite::operations
namespace niccolite::profiling {
class ConnectionEvents;
}  // namespace niccolite::profiling
namespace niccolite::registry {
class BufferImports;
class Window;
}  // namespace niccolite::registry

namespace niccolite::comm {

class Communicator;

/// Where the ranks meet that initialize() brings together.
struct Meeting {
  /// Asked once; may wait.
  std::function<Result<bootstrap::UniqueId>(const Deadline&, Abort&)> find_id;
  /// Of a rank that grows: its failure or abort ends the meeting. Else null.
  std::shared_ptr<Communicator> parent;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(gpu::Machine& machine, const Identity& identity, Configuration configuration);
  ~Communicator();

  /// Collective over all ranks; once. Blocks until every rank has come or the time is over.
  Status initialize(const Meeting& meeting);

  /// Communicators derived from this one.
  /// Collective; blocks. What is made is ready, and independent of this communicator from then on.
  /// One for each color, its ranks in the order of their keys, then of this communicator's ranks;
  /// null for kNoColor. When it fails on one rank it fails on all.
  Result<std::shared_ptr<Communicator>> split(const SplitWish& wish);
  /// One of all ranks but those in `excluded` (ascending, not this one), which do not call and may
  /// be dead; also from a communicator that has failed. `interrupts`: ends its operations before,
  /// as revoke() does. Collective over the others: see Member::shrink().
  Result<std::shared_ptr<Communicator>> shrink(const std::vector<int>& excluded, bool interrupts,
                                               const SplitWish& wish);
  /// One of all ranks and newcomers, which meet at a root: makes one in this process and tells the
  /// other ranks where it is; the next await_invitation() of each rank, which may come before,
  /// returns it. `nranks` and `passed`, the id that a user has passed, are those of the new one;
  /// when `passed` is another than that of the invitation, all who have come there hear of it.
  Result<bootstrap::UniqueId> invite();
  /// This rank will not come to where the last invite() of a rank has invited newcomers: those who
  /// wait there hear why. `passed`: the id of that invitation, if the caller knows it; it may be on
  /// its way here.
  void decline_invitation(int nranks, const std::optional<bootstrap::UniqueId>& passed,
                          const Status& why);
  Result<bootstrap::UniqueId> await_invitation(int nranks,
                                               const std::optional<bootstrap::UniqueId>& passed,
                                               const Deadline& deadline, Abort& abort);
  /// Ends the operations under way, leaving data undefined, and refuses others from then on. What
  /// needs no operations goes on working.
  Status revoke();

  /// Operations (see OperationQueue). Only when ready.
  Status run(const calls::Task& task);
  /// As OperationQueue::run_known().
  Result<bool> run_known(std::span<calls::Task> tasks);
  Result<std::vector<operations::Ready>> prepare(std::span<calls::Task> tasks);
  Status connect(std::span<operations::Ready> launches);
  Status launch(const operations::Ready& ready);
  Result<double> predict(std::span<const calls::Task> tasks);
  /// Registrations (see Registrations), from any thread, also while a stream is capturing. They end
  /// with the communicator.
  Result<void*> register_range(const void* pointer, size_t bytes) {
    return registrations_.add(pointer, bytes);
  }
  Status deregister_range(void* handle);

  /// Collective: see registry::Windows. Only when ready.
  Result<const void*> register_window(void* user, size_t bytes, int flags);
  /// In any state.
  Status deregister_window(const void* handle);
  /// Of how many ranks is each load-store team (ncclTeamLsa): ranks that follow each other, whose
  /// kernels may use each other's memory? All teams are of one size: it is 1 where machines have
  /// different numbers of ranks, or ranks of several machines take turns.
  int load_store_ranks() const;
  /// What NVML calls the device; its number in this process where there is no NVML.
  int nvml_device() const;
  /// Null when `handle` is no window of this communicator.
  std::shared_ptr<const registry::Window> find_window(const void* handle);
  /// See registry::Windows::containing().
  std::shared_ptr<const registry::Window> find_window_of(const void* pointer, size_t bytes);
  /// One-sided operations (see OneSided). Only when ready.
  Status run(const operations::OneSidedCall& call);

  operations::Operators& operators() { return operators_; }
  const operations::Operators& operators() const { return operators_; }

  /// Device memory, in bytes.
  struct MemoryUse {
    size_t suspendable = 0;  // what suspend() gives back: connections, scratch blocks; stays known
                             // while it is given back
    size_t others = 0;       // what it does not: signals, records of windows, tables
    bool is_suspended = false;
  };
  MemoryUse memory_use();
  /// Collective: gives the memory of all connections back to the devices, or brings it again, with
  /// all connections where they were. Operations are refused meanwhile; graphs of them must not be
  /// launched. InvalidUsage on all ranks when one of them is not in the state for it, or has
  /// operations under way.
  Status suspend();
  Status resume();

  /// Waits until all work of this rank's device is done; afterwards no more operations. The failure
  /// as soon as there is one, with the work where it is.
  Status finalize();
  /// Gives everything back once all work is done; when the communicator is aborted or has failed,
  /// before or meanwhile, ends the work and gives everything back within seconds. What graphs use
  /// that hold operations, it gives back when the last of them is destroyed. Of two threads that
  /// call it, the second waits for the first.
  Status end();
  /// Ends every wait of this communicator, on host and device, leaving data undefined. Local;
  /// returns at once.
  void abort(Status reason);
  /// Its state, and why it cannot be used.
  Lifetime& lifetime() { return lifetime_; }
  const Lifetime& lifetime() const { return lifetime_; }
  /// The asynchronous error; makes it the last error.
  Status report_failure();
  /// Makes `status` the asynchronous error and prints it, unless there is one; ends all waits of
  /// the host. What waits on streams goes on waiting.
  void fail(Status status);

  const Membership& membership() const { return membership_; }
  const Ways& ways() const { return ways_; }
  uint64_t id_hash() const { return membership_.hash(); }
  int rank() const { return membership_.rank(); }
  int nranks() const { return membership_.nranks(); }
  int device() const { return membership_.device(); }
  gpu::Machine& machine() const { return machine_; }
  const Configuration& configuration() const { return configuration_; }
  /// Null: nobody profiles. Made before the communicator is ready.
  const std::shared_ptr<profiling::Profiling>& profiling() const { return profiling_; }

  /// The background work of a nonblocking communicator has ended (see Lifetime).
  void settle_background(Status result);

 private:
  static constexpr std::chrono::seconds kConnectTime{30};  // a peer's process answers from a thread
                                                           // of its own
  static constexpr size_t kMostText = 4096;                // of an error that a peer tells
  /// Until when all ranks must have come: to initialization, in which one that is missing may never
  /// have been started, and to a shrink or a growth, which make communicators of ranks that may be
  /// gone. Other calls that need all ranks wait as operations do: the log tells for whom, the death
  /// of a rank and an abort end them.
  static Deadline time_for_all_ranks();

  std::string describe() const;

  // What each call does before anything else (communicator.cc).
  /// One thread uses the communicator at a time: takes in_use_ for a call of the API. While another
  /// thread's call has it, this rank's account says so.
  using InUse = std::unique_lock<ExclusiveUse>;
  [[nodiscard]] InUse use(const char* function) {
    if (!in_use_.try_lock()) [[unlikely]]
      await_use(function);
    return {in_use_, std::adopt_lock};
  }
  [[nodiscard]] InUse use(const calls::Call& call) {
    if (!in_use_.try_lock()) [[unlikely]]
      await_use(function_of(call));
    return {in_use_, std::adopt_lock};
  }
  void await_use(const char* function);
  /// It was never ready, or end() is done, and graphs alone use its parts. Holds in_use_.
  bool is_over() const { return operations_ == nullptr || has_ended_; }
  /// Operations can be queued: the communicator was neither ended nor suspended. Holds in_use_.
  Status check_operable() const;
  Status check_reach(const operations::OneSidedCall& call) const;
  std::unique_ptr<operations::OneSided> make_one_sided();
  void open_windows();
  // How it becomes ready (initialization.cc).
  Status join_and_connect(const Meeting& meeting);
  /// What this rank would have a communicator be; its rank 0's holds.
  Result<planner::Settings> make_own_settings(const planner::Limits& limits) const;
  Result<std::vector<RankInfo>> meet(const planner::Settings& settings, const Deadline& deadline);
  Status find_machine_graph(std::span<const RankInfo> ranks, const Deadline& deadline);
  /// What several ranks need: connections, requests of peers, the watch.
  Status serve_peers(const planner::Settings& settings);
  void share_buffers(bool of_captured);
  void make_operations(const planner::Settings& settings);
  /// Opens the tuner plug-in on rank 0, before a peer can ask about it. Once.
  void start_tuning(const planner::Settings& settings);
  /// Opens the profiler plug-in, if there is one, before the first operation.
  void start_profiling();

  // Communicators from this one (derivation.cc), and its memory on leave (suspension.cc).
  struct Child;
  Bytes encode_wish(const SplitWish& wish, const Status& refusal,
                    const std::vector<int>* members) const;
  std::shared_ptr<Communicator> new_child(const Child& child);
  Status start_as_child(const Child& child, Communicator& parent,
                        std::unique_ptr<bootstrap::Member> member);
  void end_unborn(Communicator& child, const Status& why) const;
  Status interrupt();
  Status agree(const Status& mine);
  Status swap_memory(bool is_suspension);

  // What ranks ask and tell each other (questions.cc).
  /// See Member::request().
  std::vector<Result<Bytes>> ask(Question question, std::span<const bootstrap::Query> queries,
                                 const Deadline& deadline,
                                 bootstrap::Patience patience = bootstrap::Patience::UntilDeadline);
  /// The same of one peer.
  Result<Bytes> ask(Question question, int peer, std::span<const std::byte> message,
                    const Deadline& deadline,
                    bootstrap::Patience patience = bootstrap::Patience::UntilDeadline);
  Result<Bytes> answer(int from, std::span<const std::byte> request);
  /// Only queues it. False: the peer has ended or left, and a line says so.
  bool tell(int peer, const Writer& question);
  void tell_failure(int peer, const Status& status);
  enum class Printed : bool { No, Yes };
  void fail_all(const Status& status, Printed printed = Printed::No);

  // Who looks after it (supervision.cc).
  Status start_watch();
  /// Of rank 0: asks all ranks when they came to their last collectives. By the watchdog.
  void survey_arrivals();
  /// What the flight recorder's dumps have of this communicator.
  void record_flight();
  /// What whoever asks about the whole job hears of this communicator.
  void show_status();
  diagnosis::RankStatus status() const;
  void note(observe::EventKind kind);
  /// For those who do not hold in_use_: the communicator may end meanwhile. Null: it has.
  std::shared_ptr<calls::CallLog> shared_log() const EXCLUDES(log_mutex_);
  /// The API function that the user has called last, as far as it is known.
  const char* last_function() const EXCLUDES(log_mutex_);

  // How it fails and ends (termination.cc).
  void fail(Status status, Printed printed);
  /// Waits for it until the deadline.
  Result<bool> are_operations_done(const Deadline& deadline);
  Status await_work(const char* function);
  bool have_absent_alone_to_read();
  void stop_reaching_peers();
  Status end_work();
  /// Why a call has failed with this status that needed peers.
  Status first_cause(Status status);
  Status compare_before_leaving();
  Status with_id(const Status& status) const;
  InUse use_to_end();
  Status give_back();
  void hand_over();
  void network_failed(Status why);
  void leave();
  void release_after_graphs();
  void release();
  void keep_for_ever();

  gpu::Machine& machine_;
  const Configuration configuration_;
  operations::Operators operators_;
  registry::Registrations registrations_;
  Membership membership_;
  Lifetime lifetime_;

  // Held by the thread that is inside a call that waits or queues work (use()); end() waits for it.
  ExclusiveUse in_use_;

  const std::shared_ptr<operations::GraphUses> graphs_ = std::make_shared<operations::GraphUses>();
  // In order of construction; see leave() and release(). All but the first are null for one rank.
  Control control_;
  std::unique_ptr<bootstrap::Member> member_;
  Ways ways_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  mutable std::mutex log_mutex_;  // for shared_log(), against release()
  std::shared_ptr<calls::CallLog> log_;
  std::shared_ptr<profiling::ConnectionEvents> connection_events_;  // the endpoint has it, too
  std::shared_ptr<profiling::Profiling> profiling_;    // the recorder of log_ has it, too
  std::unique_ptr<diagnosis::Stragglers> stragglers_;  // of rank 0; else null
  std::unique_ptr<diagnosis::Watch> watch_;
  bool has_compared_ = false;                      // before leaving; under in_use_
  std::shared_ptr<diagnosis::Watchdog> watchdog_;  // looks at *watch_
  std::optional<uint64_t> flight_;                 // of observe::Dumps, which looks at *watch_, too
  std::optional<uint64_t> shown_;  // of StatusBoard, which looks at *member_ and *log_
  std::mutex exports_mutex_;       // of the pointer's end, for those who do not hold in_use_
  std::shared_ptr<registry::BufferExports> exports_;      // null, too, if no rank can map another's
  std::shared_ptr<registry::BufferImports> imports_;      // the same
  std::unique_ptr<operations::Tuning> tuning_;            // null: the cost model chooses
  std::unique_ptr<operations::PlanAgreement> agreement_;  // where all ranks can map all others'
  std::unique_ptr<operations::MessageAgreement> message_agreement_;  // the same
  std::unique_ptr<operations::OperationQueue> operations_;           // of one rank, too
  std::mutex windows_mutex_;                                         // as exports_mutex_
  std::unique_ptr<registry::Windows> windows_;                       // of one rank, too
  std::unique_ptr<operations::OneSided> one_sided_;                  // the same
  bool is_suspended_ = false;                                        // guarded by in_use_
  uint64_t children_ = 0;  // made so far; guarded by in_use_
  mutable std::mutex lost_mutex_;
  std::set<int> lost_ GUARDED_BY(lost_mutex_);  // ranks whose processes have died
  Invitation invitation_;
  bool has_ended_ = false;                      // guarded by in_use_
  std::atomic<bool> is_left_to_graphs_{false};  // graphs alone use it; see network_failed()
};

}  // namespace niccolite::comm
