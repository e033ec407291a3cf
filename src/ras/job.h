// Job: the reports of all processes of a job on their communicators, put together. Pure data,
// except for collect().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "diagnosis/status_board.h"

namespace niccolite::ras {

using diagnosis::ProcessName;
using diagnosis::RankStatus;

enum class RankState : uint8_t { Init = 2, Running = 4, Finalize = 8, Abort = 16 };
RankState state_of(const RankStatus& rank);

struct Member {
  ProcessName process;
  RankStatus status;
};

/// A rank on which no process has reported.
struct Missing {
  int rank = 0;
  ProcessName process;  // pid 0: not known, since no process that answered knows it
};

struct CommunicatorReport {
  uint64_t id = 0;
  int nranks = 0;
  std::map<int, Member> ranks;   // by number
  std::vector<Missing> missing;  // ascending
};

struct Job {
  std::map<ProcessName, std::set<int>> processes;  // and the devices of their ranks
  std::set<ProcessName> silent;                    // subset of `processes` that did not answer
  std::set<ProcessName> dead;                      // subset of `processes` that has died
  std::vector<CommunicatorReport> communicators;   // by id
  std::chrono::duration<double> elapsed{0};
  int timeouts = 0;
};

/// Combines the states of this process and of the peers of all its communicators.
Job put_together(const diagnosis::ProcessStatus& own,
                 const std::vector<diagnosis::StatusBoard::Peer>& peers,
                 const std::map<ProcessName, diagnosis::StatusBoard::Known>& known);
/// Returns the known processes, without asking them.
Job known_job();

/// Asks them; waits for each that does not answer until the deadline, or until `cancel` is raised.
Job collect(const Deadline& deadline, Abort& cancel);

}  // namespace niccolite::ras
