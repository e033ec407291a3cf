// ProgramExecution: the workers and connections of one execution of a launch's program: a Worker
// for each pair (worker of the program, channel of its work), with a PortState for every end of a
// connection. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/host/plan.h"
#include "executor/host/port.h"
#include "executor/host/team.h"
#include "executor/host/worker.h"
#include "executor/user_memory_steps.h"

namespace niccolite::executor::host {

class ProgramExecution {
 public:
  /// Touches no connection. The arguments outlive it.
  ProgramExecution(const Plan& plan, const Reducer& reducer);

  /// Returns the workers that are not done. The caller takes a worker out when it is done.
  std::vector<Worker>& workers() { return workers_; }
  const std::vector<Worker>& workers() const { return workers_; }

  void begin();
  /// All workers are done.
  void end();
  /// See leave_all().
  bool leave();
  /// The operation goes no further. Repeated until it is true: the proxies of this rank do not use
  /// its buffers any more.
  bool let_go();

 private:
  /// Calls visit(worker of the program, channel of its work) for all that run, channel by channel.
  template <typename Visit>
  void for_each_worker(Visit visit) const;

  const Plan& plan_;
  const Reducer& reducer_;
  std::vector<uint64_t> next_tiles_;            // by worker of the program: see Worker
  std::vector<PortState> ports_;                // [channel][worker][Plan::ports_of]
  std::optional<UserMemorySteps> user_memory_;  // none: all goes through slots
  Team team_;                                   // of a launch that has one
  std::vector<TeamWindows> windows_;            // by work, of a launch that has a team
  std::vector<Worker> workers_;                 // they point into all of this
};

}  // namespace niccolite::executor::host
