// Supervision: looks after a communicator while it lives, and shows it to others: the watch, the
// survey of late ranks, the flight recorder, and the status for requests about the whole job.
// Thread safety: note_lost() and the functions of watch() from any thread; the others by the thread
// that makes or ends the communicator.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "comm/lifetime.h"
#include "diagnosis/status_board.h"
#include "gpu/devices.h"

namespace niccolite::bootstrap {
class Member;
}
namespace niccolite::diagnosis {
class Stragglers;
class Watch;
class Watchdog;
}  // namespace niccolite::diagnosis
namespace niccolite::transport {
class Endpoint;
}

namespace niccolite::comm {

class Control;
class Correspondence;
class Membership;
class SharedLog;

class Supervision {
 public:
  /// The parts of the communicator; they outlive this object's use of them.
  Supervision(const Membership& membership, const Lifetime& lifetime, SharedLog& log,
              Correspondence& peers);
  ~Supervision();

  struct Watched {
    gpu::Kind kind = gpu::Kind::Virtual;
    bootstrap::Member& member;
    Control& control;
    transport::Endpoint* network = nullptr;  // null: the network connects no ranks
    // See diagnosis::Watch.
    std::function<std::optional<std::pair<int, std::string_view>>()> awaited_leaver;
    // Makes the communicator fail on all ranks.
    std::function<void(const Status&, Printed)> fail_all;
  };
  /// Starts the watch and the flight recorder of several ranks. The log is open.
  Status start(const Watched& watched);
  /// Shows the communicator on the process's StatusBoard. `member` is null for one rank.
  void show(bootstrap::Member* member);
  /// The process of `peer` has died.
  void note_lost(int peer) EXCLUDES(lost_mutex_);

  /// Valid after start(); for answers to other ranks.
  diagnosis::Watch& watch() { return *watch_; }
  /// The last chance to see that ranks have called different things, for programs that end before
  /// the watchdog has looked, and whose ranks had nothing to wait for. Fails all ranks if they
  /// have, without printing it: the call that this is part of does. Returns the failure; the second
  /// time it does nothing.
  Status compare_before_leaving();

  /// The communicator ends: writes the requested dump, which is to have this communicator.
  void stop_recording();
  /// Takes it off the board. All waits for other ranks have ended.
  void hide();
  /// Ends the watchdog's looks.
  void stop_watching();
  /// Lets go of the log.
  void release();

 private:
  /// Adds the communicator's id, as the lines at its init have it: programs have several
  /// communicators.
  Status with_id(const Status& status) const;
  void survey_arrivals();
  /// Adds this communicator to the flight recorder's dumps.
  void record_flight();
  diagnosis::RankStatus status() const;

  const Membership& membership_;
  const Lifetime& lifetime_;
  SharedLog& log_;
  Correspondence& peers_;
  bootstrap::Member* member_ = nullptr;
  std::function<void(const Status&, Printed)> fail_all_;
  std::unique_ptr<diagnosis::Stragglers> stragglers_;  // of rank 0; else null
  std::unique_ptr<diagnosis::Watch> watch_;            // null for one rank
  std::shared_ptr<diagnosis::Watchdog> watchdog_;      // looks at *watch_
  bool has_compared_ = false;
  std::optional<uint64_t> flight_;  // of observe::Dumps, which looks at *watch_, too
  std::optional<uint64_t> shown_;   // of StatusBoard, which looks at *member_ and *log_
  mutable std::mutex lost_mutex_;
  std::set<int> lost_ GUARDED_BY(lost_mutex_);  // ranks whose processes have died
};

}  // namespace niccolite::comm
