// Communicator: one rank's membership in a group of ranks that operate together. An ncclComm_t
// points to it.
//
// Life:   create ── initialize ──> Ready ── finalize ──> Finalized ── end
//           │            └── failure ──> Failed                        ^
//           └───────────────── abort, from any thread at any time ─────┘
//
// Errors: a failing call leaves a blocking communicator usable. An error of the communicator
// itself (a lost peer, an operation of a nonblocking one) becomes its *asynchronous error*: the
// first one stays, every later call returns it. Work that is queued then goes on waiting until
// abort() or end(): unfinished work never looks finished (docs/design/failures.md). Thread
// safety: one thread at a time, except abort(), end(), lifetime(), and the const getters.
//
// Its parts are classes of their own; it brings them up, lets them work together, and ends them.
// Its functions are in files by subject: communicator.cc has the calls, initialization.cc the way
// to Ready, derivation.cc, suspension.cc, questions.cc the answers to other ranks, and
// termination.cc failure and end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/member.h"
#include "comm/buffers.h"
#include "comm/configuration.h"
#include "comm/control.h"
#include "comm/correspondence.h"
#include "comm/invitation.h"
#include "comm/lifetime.h"
#include "comm/membership.h"
#include "comm/shared_log.h"
#include "comm/supervision.h"
#include "comm/usage.h"
#include "comm/ways.h"
#include "operations/graph_uses.h"
#include "operations/one_sided_call.h"
#include "operations/operation_queue.h"
#include "operations/operators.h"

// The API's sources include this file: classes that it only points to are not defined here.
namespace niccolite::operations {
class BufferComparison;
class OneSided;
}  // namespace niccolite::operations
namespace niccolite::registry {
struct CapturedBuffer;
struct DeviceComm;
struct DeviceNeeds;
class Gins;
}  // namespace niccolite::registry
namespace niccolite::profiling {
class ConnectionEvents;
}
namespace niccolite::transport {
class Team;
class TeamRange;
}  // namespace niccolite::transport
namespace niccolite::transport::net {
class Network;
class UserBuffers;
}  // namespace niccolite::transport::net

namespace niccolite::comm {

class Communicator;
struct Child;  // derivation.cc

/// The meeting place of the ranks that initialize() brings together.
struct Meeting {
  /// Asked once; may wait.
  std::function<Result<bootstrap::UniqueId>(const Deadline&, Abort&)> find_id;
  /// For a rank that grows: the failure or abort of `parent` ends the meeting. Else null.
  std::shared_ptr<Communicator> parent;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(gpu::Machine& machine, const Identity& identity, Configuration configuration);
  ~Communicator();

  /// Collective over all ranks; once. Blocks until every rank has come or the time is over.
  Status initialize(const Meeting& meeting);

  /// Communicators derived from this one.
  /// Collective; blocks. The new communicator is ready, and independent of this one from then on.
  /// There is one for each color, its ranks in the order of their keys, then of this communicator's
  /// ranks; null for kNoColor. When it fails on one rank it fails on all.
  Result<std::shared_ptr<Communicator>> split(const SplitWish& wish);
  /// One of all ranks but those in `excluded` (ascending, not this one), which do not call and may
  /// be dead; also from a communicator that has failed. `interrupts`: ends its operations before,
  /// as revoke() does. Collective over the others: see Member::shrink().
  Result<std::shared_ptr<Communicator>> shrink(const std::vector<int>& excluded, bool interrupts,
                                               const SplitWish& wish);
  /// One of all ranks and newcomers, which meet at a root: makes one in this process and tells the
  /// other ranks where it is, whose invitation() then has its id.
  Result<bootstrap::UniqueId> invite();
  Invitation& invitation() { return invitation_; }
  /// Ends the operations under way, leaving data undefined, and refuses others from then on. Calls
  /// that need no operations go on working.
  Status revoke();

  /// The calls of a group, all steps of OperationQueue. Only when ready.
  Status perform(std::span<calls::Task> tasks);
  /// The steps of perform(), for groups of several communicators; launch_chosen() for each launch.
  /// Do the tasks begin with compare_buffers(), in which all ranks wait for each other? The same on
  /// all ranks.
  Result<bool> compares_buffers(std::span<const calls::Task> tasks);
  /// See operations::BufferComparison.
  Result<std::vector<registry::CapturedBuffer>> compare_buffers(std::span<const calls::Task> tasks);
  Result<operations::Chosen> choose_launches(std::span<calls::Task> tasks,
                                             std::vector<registry::CapturedBuffer> captured);
  Status connect_chosen(operations::Chosen& chosen);
  Status launch_chosen(const operations::Chosen& chosen, size_t number);
  Result<double> predict(std::span<const calls::Task> tasks);
  /// Registrations and windows.
  Buffers& buffers() { return buffers_; }
  /// Collective: see registry::Windows. Only when ready.
  Result<const void*> register_window(void* user, size_t bytes, int flags);
  /// Collective: see registry::DeviceComms. Only when ready.
  Result<registry::DeviceComm> make_device_comm(const registry::DeviceNeeds& needs);
  /// Local: `window` has its resources, which go when the device has done all work queued before.
  Status end_device_comm(const void* window);
  /// Can device communicators have multicast addresses, as far as this rank knows?
  bool may_have_multicast() const;
  /// For kernels of the user: a word in host memory that is not zero once their waits must end.
  const uint32_t* abort_flag() const { return &control_.words()->abort; }
  /// One-sided operations (see OneSided). Only when ready.
  Status perform_one_sided(const operations::OneSidedCall& call);

  operations::Operators& operators() { return operators_; }
  const operations::Operators& operators() const { return operators_; }

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
  /// before or meanwhile, ends the work and gives everything back within seconds. It gives
  /// back the resources of graphs that hold operations when the last of them is destroyed. If two
  /// threads call it, the second waits for the first.
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
  /// the host. Work on streams goes on waiting.
  void fail(Status status, Printed printed = Printed::No);

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
  /// Until when all ranks must have come: to initialization, in which one that is missing may never
  /// have been started, and to a shrink or a growth, which make communicators of ranks that may be
  /// gone. Other calls that need all ranks wait as operations do: the log tells for whom, the death
  /// of a rank and an abort end them.
  static Deadline time_for_all_ranks();

  std::string describe() const;

  // Calls (communicator.cc).
  using InUse = Usage::Held;
  template <typename Call>
  [[nodiscard]] InUse use(const Call& call) {
    return usage_.take(call);
  }
  /// It was never ready, or end() is done, and graphs alone use its parts. Holds usage_.
  bool is_over() const { return operations_ == nullptr || has_ended_; }
  /// Operations can be queued: the communicator was neither ended nor suspended. Holds usage_.
  Status check_operable() const;
  std::unique_ptr<operations::OneSided> make_one_sided();
  std::unique_ptr<registry::Gins> make_gins();
  bool team_may_reach_windows() const;
  void reach_windows_by_team();
  void open_windows_of_team();
  void make_comparison(bool of_captured);
  /// compare_buffers(), for who holds usage_.
  Result<std::vector<registry::CapturedBuffer>> compare_held(std::span<const calls::Task> tasks);
  void open_windows();
  void release_device_comm(const void* window);
  /// See transport::PutSink.
  bool land(int peer, std::span<const std::byte> chunk);
  bool land_gin(int peer, std::span<const std::byte> chunk);
  bool note_landing(int peer, Status landed);

  // How it becomes ready (initialization.cc).
  Status join_and_connect(const Meeting& meeting);
  Status choose_own_network();
  Status find_machine_graph(std::span<const RankInfo> ranks, const Deadline& deadline);
  /// Prepares connections, answers to peers and the watch, if there are several ranks.
  void permit_direct();
  std::shared_ptr<transport::net::UserBuffers> make_user_buffers();
  Status serve_peers(const planner::Settings& settings, std::unique_ptr<transport::Team> team);
  /// Why this rank can be in no multicast team; empty: it may be. No call of the driver.
  std::string team_refusal() const;
  /// Makes the multicast team of the machine's ranks, and enters it in `settings`; null: there is
  /// none. `shared`: teams of the same ranks, which all ranks have, or none has.
  Result<std::unique_ptr<transport::Team>> make_team(
      planner::Settings& settings, const Deadline& deadline,
      std::shared_ptr<transport::TeamRange> shared = {});
  /// Lets the network reduce, where it can and the user wants it. Collective over all ranks.
  Status connect_reducer(planner::Settings& settings, const Deadline& deadline);
  void share_buffers(bool of_captured);
  void make_operations(const planner::Settings& settings);
  /// Opens the tuner plug-in on rank 0, before a peer can ask about it. Once.
  void start_tuning(const planner::Settings& settings);
  /// Opens the profiler plug-in, if there is one, before the first operation.
  void start_profiling();

  // Communicators from this one (derivation.cc), and its memory on leave (suspension.cc).
  Bytes encode_wish(const SplitWish& wish, const Status& refusal,
                    const std::vector<int>* members) const;
  Status start_as_child(const Child& child, Communicator& parent,
                        std::unique_ptr<bootstrap::Member> member);
  Status interrupt();
  Status swap_memory(bool is_suspension);

  // Answers to other ranks (questions.cc).
  Result<Bytes> answer(int from, std::span<const std::byte> request);
  void fail_all(const Status& status, Printed printed = Printed::No);

  // How it fails and ends (termination.cc).
  /// Waits for it until the deadline.
  Result<bool> are_operations_done(const Deadline& deadline);
  Status await_work(const char* function);
  void stop_reaching_peers();
  Status end_work();
  /// Why a call has failed with this status that needed peers.
  Status first_cause(Status status);
  Status give_back();
  void hand_over();
  void network_failed(Status why);
  void leave();
  Result<std::shared_ptr<gpu::Backlog>> work_of_user();
  void keep_buffers(const Status& why);
  void await_kernels(const char* function, gpu::Backlog& kernels,
                     const std::function<void()>& release);
  void call_after_kernels(const char* function, std::shared_ptr<gpu::Backlog> kernels,
                          std::function<void()> release);
  void release_after_kernels(const std::shared_ptr<gpu::Backlog>& kernels);
  void release_after_graphs(const std::shared_ptr<gpu::Backlog>& kernels);
  void release();

  gpu::Machine& machine_;
  const Configuration configuration_;
  operations::Operators operators_;
  Membership membership_;
  Lifetime lifetime_;
  Buffers buffers_;
  SharedLog log_;  // open if there are several ranks
  Correspondence peers_;
  Supervision supervision_;

  Usage usage_;  // end() waits for it
  const std::shared_ptr<operations::GraphUses> graphs_ = std::make_shared<operations::GraphUses>();
  // In order of construction; see leave() and release(). All but the first are null for one rank.
  Control control_;
  std::unique_ptr<bootstrap::Member> member_;
  Ways ways_;
  std::shared_ptr<transport::net::Network>
      network_;  // to other machines, until it is ready; null: sockets
  std::unique_ptr<operations::OneSided>
      one_sided_;                         // of one rank, too; the endpoint's puts land here
  std::unique_ptr<registry::Gins> gins_;  // as `one_sided_`
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::shared_ptr<profiling::ConnectionEvents> connection_events_;  // the endpoint has it, too
  std::shared_ptr<profiling::Profiling> profiling_;       // the recorder of log_ has it, too
  std::unique_ptr<operations::Tuning> tuning_;            // null: the cost model chooses
  std::unique_ptr<operations::PlanAgreement> agreement_;  // where all ranks can map all others'
  std::unique_ptr<operations::MessageAgreement> message_agreement_;  // the same
  std::unique_ptr<operations::OperationQueue> operations_;           // of one rank, too
  std::unique_ptr<operations::BufferComparison> comparison_;  // null: a team reaches no buffers
  enum class TeamWindows : uint8_t { Untried, Reached, NotReached };
  TeamWindows team_windows_ = TeamWindows::Untried;  // reach_windows_by_team()
  bool has_team_ = false;                            // make_team() has made one
  bool is_suspended_ = false;                        // guarded by usage_
  uint64_t children_ = 0;                            // made so far; guarded by usage_
  Invitation invitation_;
  bool has_ended_ = false;                      // guarded by usage_
  std::atomic<bool> is_left_to_graphs_{false};  // graphs alone use it; see network_failed()
};

}  // namespace niccolite::comm
