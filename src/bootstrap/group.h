// Group: some ranks of a session with numbers of their own, from 0: bootstrap's view of a
// communicator. The first group of a session has all its ranks. The other groups are made from
// existing groups, over the existing links, without a rendezvous. Each has its roster, gathers and
// mailroom; all groups share the session's loop, links and mutex.
//
//   group process    0      1    2       position in the list of processes of the group, ascending
//   session process  1      4    5       number of the process in the mesh
//   group ranks      0 3    1    2 4
//
// Life. Every process that has ranks in a group makes the group, with the same id and list, before
// any of these processes sends a message in it (Member::derive says how). So a frame of an unknown
// group belongs to a past group. A process whose ranks have all left keeps the group, to pass on
// gathers of others, until the ranks of all its processes have left or one of the processes is
// lost: then nothing is gathered any more. The groups from which it was made, and groups made from
// it, may end before or after it.
//
// Thread safety: as each function says; the lock is the session's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bootstrap/absences.h"
#include "bootstrap/gathers.h"
#include "bootstrap/mailroom.h"
#include "bootstrap/roster.h"
#include "bootstrap/service.h"
#include "bootstrap/survivors.h"

namespace niccolite::bootstrap {

class Group final : public std::enable_shared_from_this<Group> {
 public:
  static constexpr uint64_t kAllRanks = 0;  // the id of a session's first group

  /// The session, as its groups see it; processes are the session's. It outlives them.
  struct Outside {
    std::mutex& mutex;
    Service& service;
    std::function<void(uint32_t process, std::shared_ptr<const Bytes> frame)> transmit;
    std::function<void(uint32_t process)> probe;
    Absences& absences;
  };

  /// `processes`: of the session, ascending; empty for all of them.
  Group(uint64_t id, std::vector<uint32_t> processes, Outside outside);

  uint64_t id() const { return id_; }
  Roster& roster() { return roster_; }
  Gathers& gathers() { return gathers_; }
  Mailroom& mailroom() { return mailroom_; }
  Survivors& survivors() { return survivors_; }

  // All below: the lock is held.

  uint32_t session_process(uint32_t process) const {
    return processes_.empty() ? process : processes_[process];
  }
  /// Nothing: `session_process` has no rank in the group.
  std::optional<uint32_t> process_of(uint32_t session_process) const;
  /// A frame as it travels: `message` comes from a rank or process of the group.
  std::shared_ptr<const Bytes> wrap(std::shared_ptr<const Bytes> message) const;

  /// Takes a message of group process `process`, of a type that InGroup carries. A failure means
  /// that the process broke the protocol.
  Status take(uint32_t process, std::span<const std::byte> message);
  /// The processes' ends, by their numbers in the group. After a loss no gather succeeds.
  void departed(uint32_t process, Status why);
  void lost(uint32_t process, const std::string& why);
  /// The ranks that made the group came to no agreement: nobody will gather in it.
  void abandon() { gathers_no_more_ = true; }
  /// True after a loss, or when it is abandoned.
  bool gathers_no_more() const { return gathers_no_more_; }
  /// Has the local's callback called for the ranks of a lost process, on the service thread.
  void tell_lost(std::shared_ptr<Local> local, uint32_t process);
  /// Returns the ranks of this process that have left while other ranks of the process stay.
  messages::Left what_left() const;

 private:
  Status take_left(uint32_t process, Reader& reader);

  const uint64_t id_;
  const std::vector<uint32_t> processes_;
  const Outside outside_;
  Roster roster_;
  Gathers gathers_;
  Mailroom mailroom_;
  Survivors survivors_;
  bool gathers_no_more_ = false;
};

}  // namespace niccolite::bootstrap
