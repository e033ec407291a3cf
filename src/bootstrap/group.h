// Group: some ranks of a session with numbers of their own, from 0: what a communicator is to
// bootstrap. The first group of a session is all its ranks; the others are made from it, or from
// one another, over the links that there are: nobody meets anybody. Each has its roster, gathers
// and mailroom; what they have in common is the session's loop, links and mutex.
//
//   group process    0      1    2       position in the list of processes of the group, ascending
//   session process  1      4    5       what the mesh knows
//   group ranks      0 3    1    2 4
//
// Life. Every process that has ranks in a group makes it, with the same id and list, before any of
// them sends anything in it (Member::derive says how); a frame of an unknown group is one of the
// past. A process in which no rank is left keeps the group, to pass on what others gather, until
// all its processes have said the same, or one of them is lost: then nothing is gathered any more.
// Groups that it was made from may end before it or after it, and so may those made from it.
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

  /// A message of group process `process`, of those that InGroup carries. A failure means that it
  /// broke the protocol.
  Status take(uint32_t process, std::span<const std::byte> message);
  /// The processes' ends, by their numbers in the group. After a loss no gather succeeds.
  void departed(uint32_t process, Status why);
  void lost(uint32_t process, const std::string& why);
  /// Those who have made it came to no agreement: nobody will gather in it.
  void abandon() { gathers_no_more_ = true; }
  /// After a loss, or when it is abandoned.
  bool gathers_no_more() const { return gathers_no_more_; }
  /// Has the local's callback called for the ranks of a lost process, on the service thread.
  void tell_lost(std::shared_ptr<Local> local, uint32_t process);
  /// Which of this process' ranks have left while others of it, or of other groups, stay.
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
