// Session: the part of one process in the ranks that met by one unique id: an event loop with the
// links to other processes, and the groups. One group has all ranks, the others are made from it.
// The first rank that joins with an id makes the session, other ranks of the process find it, and
// the last rank that leaves the last group ends it.
//
//   Joining --(all ranks have come)--> Placed --(all know all processes)--> Ready --+
//      |                                 |                                           |
//      +---------------------------------+--------> Failed -------------------------+--> Over
//                                                                 (the last member has left)
//
// Threads: members' threads enter through the functions of Member. Only the loop's thread touches
// the objects of the loop (mesh, root client). One mutex guards the session and all its groups.
// Lock order: the registry of sessions, then this mutex, then the mutexes of loop and service.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "bootstrap/group.h"
#include "bootstrap/member.h"
#include "bootstrap/mesh.h"
#include "bootstrap/root_client.h"
#include "bootstrap/service.h"

namespace niccolite::bootstrap {

class Session final : private Mesh::Events, public std::enable_shared_from_this<Session> {
 public:
  /// Registers a rank with the session of its id, made if need be. `refusal`: why it ends the
  /// rendezvous for all, instead of taking part in it.
  static Result<std::pair<std::shared_ptr<Session>, std::shared_ptr<Local>>> enter(
      const JoinOptions& options, const Status& refusal = {});
  ~Session();

  /// Waits until the session is Ready.
  Status wait_ready(const std::shared_ptr<Local>& local, Deadline deadline);
  const std::shared_ptr<Group>& all_ranks() const { return all_ranks_; }
  /// Returns the groups' secret, which is equal in all processes.
  authentication::Secret secret() const { return id_.key("groups"); }
  /// See Member::derive(). `parent` is a group of this session in which this process has a rank.
  std::pair<std::shared_ptr<Group>, std::shared_ptr<Local>> derive(Group& parent,
                                                                   const DeriveOptions& options);
  /// See Member::give_up_on().
  void give_up_on(Group& group, int32_t rank);
  /// See Member::is_absent().
  bool is_absent(Group& group, int32_t rank);
  void leave(const std::shared_ptr<Group>& group, const std::shared_ptr<Local>& local);
  void on_peer_lost(const std::shared_ptr<Group>& group, const std::shared_ptr<Local>& local,
                    std::function<void(int, const Status&)> callback);

  /// False in a child made by fork(): threads and links are the parent's.
  bool belongs_to_this_process() const;

 private:
  enum class Phase { Joining, Placed, Ready, Failed };
  struct Failure {
    Status status;
    std::vector<int32_t> missing;  // ranks that did not come in time
  };

  explicit Session(const UniqueId& id);
  static Result<std::shared_ptr<Session>> create(const UniqueId& id);
  friend class SessionRegistry;

  // Any thread, without the lock unless said.
  void transmit(uint32_t process, std::shared_ptr<const Bytes> frame);
  void fail(Status status, std::vector<int32_t> missing = {});
  Status given_up(const Local& local, const Status& why) const;
  void fail_locked(Status status, std::vector<int32_t> missing);                   // with the lock
  Status describe_failure(const Local& local, Deadline::Clock::time_point start);  // with the lock
  Status describe_silence(const Local& local, Deadline::Clock::time_point start);  // with the lock
  Group::Outside outside();
  RunState run_state_of(uint32_t process);
  std::shared_ptr<Group> make_group(Group& parent, uint64_t id, std::span<const int> ranks);
  /// A rank of this process is in one more group.
  void admit(Group& group, std::shared_ptr<Local> local);  // with the lock
  void listen_for_abort(const std::shared_ptr<Local>& local);
  void say_left(Group& group, int32_t rank);  // with the lock
  /// That of all ranks, and the others: a copy, since they come and go.
  std::vector<std::shared_ptr<Group>> groups();  // with the lock
  /// How long the end takes at most: until all has been said, and until it has been answered.
  struct Farewell {
    wire::EventLoop::Clock::duration patience{}, answer{};
  };
  Farewell farewell_of(const Local& local) const;  // with the lock
  void shut_down(Farewell farewell);
  /// Counts the remaining members as departed, after shut_down(): nobody hears them any more.
  void count_all_as_departed();

  // The loop's thread, without the lock unless said.
  void announce(const std::shared_ptr<Local>& local, Deadline deadline);
  Status listen(const Address& local);
  void root_connected(const Address& local);
  void placed(const messages::Assignment& place);
  void table_complete(Result<std::vector<messages::ProcessEntry>> table);  // with the lock
  void introduce_if_ready();
  void departed(uint32_t process, const Status& why);  // with the lock
  void lost(messages::Lost loss);
  Status take_frame(uint32_t process, std::span<const std::byte> payload);
  uint32_t process_of(Group& group, int32_t rank);
  void leave_absent_behind();
  void stop_if_over();
  void mesh_linked(uint32_t process) override;
  void mesh_frame(uint32_t process, std::span<const std::byte> payload) override;
  void mesh_departed(uint32_t process) override;
  void mesh_lost(uint32_t process, Status reason) override;
  void mesh_unreachable(uint32_t process, Status reason) override;
  void mesh_exhausted(const Status& why) override;
  void mesh_over() override;

  const UniqueId id_;
  const pid_t process_;
  uint64_t number_ = 0;
  messages::Origin origin_;
  std::mutex mutex_;
  Absences absences_;
  Service service_;
  const std::shared_ptr<Group> all_ranks_;
  Roster& roster_;    // of all ranks
  Gathers& gathers_;  // of all ranks
  // Guarded by the mutex.
  Phase phase_ = Phase::Joining;
  Failure failure_;
  bool root_knows_ = false;  // the root has heard of our ranks, so its text names the missing ranks
  std::string trouble_;      // of the last attempt to reach the root
  std::vector<std::pair<std::shared_ptr<Local>, Deadline>> joining_;
  bool shut_down_ = false;
  std::map<uint64_t, std::shared_ptr<Group>> derived_;  // by id
  size_t members_ = 0;                                  // ranks of this process, in all groups

  std::unique_ptr<wire::EventLoop> loop_;
  // Touched by the loop's thread only.
  std::optional<Mesh> mesh_;
  std::optional<RootClient> root_;
  std::set<const Local*> announced_;  // on the present link to the root
  std::vector<std::pair<uint32_t, Bytes>>
      deferred_;  // frames that came before the table of processes
  bool listening_ = false;
  bool introduced_ = false;
  bool told_shortage_ = false;
  bool stopping_ = false;
  bool waits_for_answers_ = false;  // to the goodbyes, and has for kLookInterval
  bool mesh_is_over_ = false;
  wire::EventLoop::Id grace_ = 0;

  Thread thread_;  // runs loop_; last: joined first
};

}  // namespace niccolite::bootstrap
