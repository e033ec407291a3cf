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
// safety: one thread at a time, except abort(), end(), state(), failure(), and the const getters.
//
// Its functions are in files by subject: communicator.cc has its calls, initialization.cc how it
// becomes ready, reach.cc the ways between its ranks, derivation.cc and suspension.cc what their
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

#include "base/thread.h"
#include "bootstrap/member.h"
#include "comm/configuration.h"
#include "comm/control.h"
#include "comm/exclusive_use.h"
#include "comm/invitation.h"
#include "comm/links.h"
#include "comm/question.h"
#include "comm/rank_info.h"
#include "diagnosis/status_board.h"
#include "operations/graph_uses.h"
#include "operations/one_sided_call.h"
#include "operations/operation_queue.h"
#include "operations/operators.h"
#include "registry/registrations.h"
#include "transport/reach.h"

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
namespace niccolite::topology {
class Graph;
}
namespace niccolite::transport {
struct Carrier;
}

namespace niccolite::comm {

class Communicator;

/// Where the ranks meet that initialize() brings together.
struct Meeting {
  /// Asked once; may wait.
  std::function<Result<bootstrap::UniqueId>(const Deadline&, Abort&)> find_id;
  /// Of a rank that grows: its failure or abort ends the meeting. Else null.
  std::shared_ptr<Communicator> parent;
};

struct Identity {
  Meeting meeting;    // nothing for a communicator made over the links of another
  uint64_t hash = 0;  // of one made from another; else that of the id
  int nranks = 0;
  int rank = -1;
  int device = -1;            // the device current when the communicator was asked for
  const char* function = "";  // the API call that made it, for log lines
};

enum class State : uint8_t { InProgress, Ready, Finalized, Failed };

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(gpu::Machine& machine, Identity identity, Configuration configuration);
  ~Communicator();

  /// Collective over all ranks; once. Blocks until every rank has come or the time is over.
  Status initialize();

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
  bool is_revoked() const {
    return is_revoked_.load(std::memory_order_acquire);  // pairs with interrupt()
  }

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
  /// Can every rank map the memory of all others? Else windows are null, and there are no puts and
  /// signals.
  bool maps_all_memory() const { return !needs_network() && !lacks_access_; }
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
  /// Why the waits of this communicator have ended, by a failure or abort(); fine when they have
  /// not.
  Status abort_reason() const { return abort_.reason(); }

  /// Why the communicator cannot be used now: fine, InProgress as InvalidArgument, or its
  /// asynchronous error.
  Status check_ready() const;
  /// The same, but a finalized communicator may still be asked about itself.
  Status check_usable() const;
  /// As check_ready(), of operations, which a failure stops that the communicator has outlived.
  Status check_takes_operations() const;
  State state() const {
    // [acquire] pair with change_state(), fail(), which writes them in the opposite order, and
    // settle_background().
    const State state = state_.load(std::memory_order_acquire);
    const bool works =
        state == State::Failed && works_after_failure_.load(std::memory_order_acquire);
    return works ? State::InProgress : state;
  }
  /// The asynchronous error; fine when there is none.
  Status failure() const;
  /// Is the failure the loss of a rank that a shrink has left out? Then it is an error of
  /// operations alone. Not while there is an error of background work to tell of.
  bool has_outlived_failure() const;
  /// The same, and makes it the last error.
  Status report_failure();
  /// Makes `status` the asynchronous error and prints it, unless there is one; ends all waits of
  /// the host. What waits on streams goes on waiting.
  void fail(Status status);

  /// Equal for the ranks of one communicator, and different from other communicators'.
  uint64_t id_hash() const { return id_hash_; }
  int rank() const { return identity_.rank; }
  int nranks() const { return identity_.nranks; }
  int device() const { return identity_.device; }
  gpu::Machine& machine() const { return machine_; }
  const Configuration& configuration() const { return configuration_; }
  /// Null: nobody profiles. Made before the communicator is ready.
  const std::shared_ptr<profiling::Profiling>& profiling() const { return profiling_; }

  /// Nonblocking communicators: background work marks the communicator as in progress, then settles
  /// it.
  void begin_background();
  void settle_background(Status result);
  void keep_background(std::shared_ptr<Thread> thread);

 private:
  static constexpr std::chrono::seconds kConnectTime{30};  // a peer's process answers from a thread
                                                           // of its own
  static constexpr size_t kMostText = 4096;                // of an error that a peer tells
  /// Until when all ranks must have come: to initialization, in which one that is missing may never
  /// have been started, and to a shrink or a growth, which make communicators of ranks that may be
  /// gone. Other calls that need all ranks wait as operations do: the log tells for whom, the death
  /// of a rank and an abort end them.
  static Deadline time_for_all_ranks();

  /// Moves from one state to another; false if a failure came in between.
  bool change_state(State from, State to) {
    // [release] all that was made in state `from`, to readers of state().
    return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  bool has_failed() const {
    return state_.load(std::memory_order_acquire) == State::Failed;  // pairs with fail()
  }
  std::string describe() const;

  // What each call does before anything else (communicator.cc).
  Status revoked() const;
  Status gone() const;
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
  /// Are ranks on several machines, and is that one on another than this rank?
  bool spans_machines() const;
  bool is_remote(int peer) const {
    return machine_of_[static_cast<size_t>(peer)] != machine_of_[static_cast<size_t>(rank())];
  }
  /// Does the network connect ranks that have no other way to each other?
  bool needs_network() const { return spans_machines() || (lacks_access_ && lacks_host_); }

  // How it becomes ready (initialization.cc).
  Status join_and_connect(const Meeting& meeting);
  /// What this rank would have a communicator be; its rank 0's holds.
  Result<planner::Settings> make_own_settings(const planner::Limits& limits) const;
  Result<std::vector<RankInfo>> meet(const planner::Settings& settings, const Deadline& deadline);
  Status find_machine_graph(std::span<const RankInfo> ranks, const Deadline& deadline);
  /// What several ranks need: connections, requests of peers, the watch.
  Status serve_peers(const planner::Settings& settings, transport::Reach reach);
  transport::Carrier place_on_network() const;
  void share_buffers(bool of_captured);
  void make_operations(const planner::Settings& settings);
  /// Opens the tuner plug-in on rank 0, before a peer can ask about it. Once.
  void start_tuning(const planner::Settings& settings);
  /// Opens the profiler plug-in, if there is one, before the first operation.
  void start_profiling();

  // Which ways there are between the ranks (reach.cc).
  Result<transport::Reach> exchange_links(const std::vector<RankInfo>& ranks,
                                          planner::Settings& settings, const Deadline& deadline);
  Links describe_links(const std::vector<RankInfo>& ranks);
  Result<std::vector<PeerLinks>> gather_links(const Links& links, const Deadline& deadline);
  /// Tries the peer paths that no process has tried yet, and says which are broken.
  Status try_peer_access(const std::vector<RankInfo>& ranks, const Links& links,
                         const std::vector<PeerLinks>& of_peers, const Deadline& deadline);
  transport::PeerAccess access_to(const RankInfo& other, bool is_here, int local);
  /// Of the ways between ranks, to what the planner may choose.
  Status apply_ways(planner::Settings& settings);

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
  void keep_background_failure(const Status& status);
  /// Has a shrink left this rank out? -1: no.
  bool is_left_out(int peer) const REQUIRES(failure_mutex_);
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
  Meeting meeting_;  // until initialize(): a parent is not kept alive by its children
  const Identity identity_;
  uint64_t id_hash_;  // of the id, once that is known; groups are sorted by it
  const Configuration configuration_;
  operations::Operators operators_;
  registry::Registrations registrations_;
  std::atomic<State> state_{State::InProgress};
  Abort abort_;
  mutable std::mutex failure_mutex_;
  Status failure_ GUARDED_BY(failure_mutex_);
  std::vector<int> left_out_ GUARDED_BY(failure_mutex_);  // by shrinks that succeeded
  // The first error of background work since the last of these shrinks.
  Status background_failure_ GUARDED_BY(failure_mutex_);

  // Held by the thread that is inside a call that waits or queues work (use()); end() waits for it.
  ExclusiveUse in_use_;
  std::mutex background_mutex_;
  std::shared_ptr<Thread> background_
      GUARDED_BY(background_mutex_);  // of the last nonblocking work

  const std::shared_ptr<operations::GraphUses> graphs_ = std::make_shared<operations::GraphUses>();
  // In order of construction; see leave() and release(). All but the first are null for one rank.
  Control control_;
  std::unique_ptr<bootstrap::Member> member_;
  std::vector<int> machine_of_;  // by rank, by number; empty for one rank
  // Of several machines, of links that are no NVLink, or where a rank asks for it; else null.
  std::shared_ptr<const topology::Graph> machine_graph_;
  std::vector<int> rails_;        // of the graph (topology/rails.h)
  std::vector<int> graph_ranks_;  // by rank, what the graph knows it as
  std::vector<int> device_of_;    // by rank, in its process; the same
  std::string gpu_;               // planner::Settings::gpu
  // Some ranks of one machine have no peer access to each other; some do not share host memory. Of
  // a communicator made from another: of some of that one's ranks.
  bool lacks_access_ = false;
  bool lacks_host_ = false;
  transport::Reach reach_;
  std::string torn_link_;            // why LL128 is not used here; empty: it may be
  std::vector<int> reaching_peers_;  // whose kernels can use buffers of this rank's user
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
  std::atomic<bool> is_revoked_{false};
  std::atomic<bool> is_ended_by_user_{false};  // by abort()
  mutable std::mutex lost_mutex_;
  std::set<int> lost_ GUARDED_BY(lost_mutex_);  // ranks whose processes have died
  // In the background, on one that has failed: a shrink without those whose loss it was, or what
  // that loss has come upon. Written under failure_mutex_.
  std::atomic<bool> works_after_failure_{false};
  Invitation invitation_;
  std::mutex unborn_mutex_;
  std::shared_ptr<Communicator> unborn_ GUARDED_BY(unborn_mutex_);  // abort() ends it, too
  bool is_aborted_ GUARDED_BY(unborn_mutex_) = false;
  bool has_ended_ = false;                      // the same
  std::atomic<bool> is_left_to_graphs_{false};  // graphs alone use it; see network_failed()
};

}  // namespace niccolite::comm
