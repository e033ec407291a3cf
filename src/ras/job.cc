#include "ras/job.h"

#include <algorithm>
#include <utility>

namespace niccolite::ras {

RankState state_of(const RankStatus& rank) {
  if (rank.aborted) return RankState::Abort;
  if (rank.finalized) return RankState::Finalize;
  return RankState::Running;
}

Job put_together(const diagnosis::ProcessStatus& own,
                 const std::vector<diagnosis::StatusBoard::Peer>& peers,
                 const std::map<ProcessName, diagnosis::StatusBoard::Known>& known_processes) {
  Job job;
  for (const auto& [name, known] : known_processes) {
    job.processes[name] = known.devices;
    if (known.is_lost) job.dead.insert(name);
  }
  std::map<uint64_t, CommunicatorReport> communicators;
  const auto add = [&](const diagnosis::ProcessStatus& process) {
    std::set<int>& devices = job.processes[process.name];
    for (const RankStatus& rank : process.ranks) {
      devices.insert(rank.device);
      CommunicatorReport& report = communicators[rank.communicator];
      report.id = rank.communicator;
      report.nranks = std::max(report.nranks, rank.nranks);
      report.ranks.insert_or_assign(rank.rank, Member{process.name, rank});
    }
  };
  add(own);
  std::map<std::pair<uint64_t, int>, ProcessName> known;  // the process of each rank
  for (const diagnosis::StatusBoard::Peer& peer : peers) {
    for (const auto& place : peer.ranks) known[place] = peer.name;
    if (peer.status) {
      add(*peer.status);
    } else {
      job.processes[peer.name];
      job.silent.insert(peer.name);
    }
  }
  for (auto& [id, report] : communicators) {
    for (int rank = 0; rank < report.nranks; ++rank) {
      if (report.ranks.contains(rank)) continue;
      const auto found = known.find({id, rank});
      report.missing.push_back(
          {.rank = rank, .process = found == known.end() ? ProcessName{} : found->second});
    }
    job.communicators.push_back(std::move(report));
  }
  return job;
}

Job known_job() {
  Job job;
  for (const auto& [name, known] : diagnosis::StatusBoard::of_process().processes())
    job.processes[name] = known.devices;
  return job;
}

Job collect(const Deadline& deadline, Abort& cancel) {
  const auto start = Deadline::Clock::now();
  diagnosis::StatusBoard& board = diagnosis::StatusBoard::of_process();
  const std::vector<diagnosis::StatusBoard::Peer> peers = board.ask_peers(deadline, cancel);
  Job job = put_together(board.describe_this_process(), peers, board.processes());
  job.elapsed = Deadline::Clock::now() - start;
  // A dead process is known to be dead at once; the silent ones have made the caller wait.
  if (deadline.passed() || cancel.raised()) job.timeouts = static_cast<int>(job.silent.size());
  return job;
}

}  // namespace niccolite::ras
