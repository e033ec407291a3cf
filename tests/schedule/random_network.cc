#include "tests/schedule/random_network.h"

#include <algorithm>

#include "schedule/builder.h"
#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

int below(int bound, std::mt19937& random) {
  return static_cast<int>(random() % static_cast<unsigned>(bound));
}

/// One chunk in or out of a worker.
struct Transfer {
  int connection;
  bool is_send;
};

/// Some neighbouring pairs of a receive and a send become one instruction, which waits for both.
std::vector<Instruction> pair_up(const std::vector<Transfer>& transfers, std::mt19937& random) {
  std::vector<Instruction> instructions;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Instruction instruction{.chunk_of = 0};
    if (transfers[i].is_send) {
      instruction.source = input(0);
      instruction.send_to = {transfers[i].connection};
    } else {
      instruction.receive_from = {transfers[i].connection};
      if (i + 1 < transfers.size() && transfers[i + 1].is_send && below(2, random) == 0)
        instruction.send_to = {transfers[++i].connection};
      else
        instruction.target = scratch(0);  // the worker's own block, set below
    }
    instructions.push_back(std::move(instruction));
  }
  return instructions;
}

}  // namespace

Schedule random_network(std::mt19937& random) {
  struct WorkerDraft {
    int rank;
    std::vector<Transfer> transfers;
  };
  Schedule schedule{.collective = Collective::AllReduce,
                    .algorithm = "random",
                    .nranks = 2 + below(2, random),
                    .nblocks = 1,
                    .scratch_blocks = 2,
                    .partial_sums = true,
                    .connections = {},
                    .ranks = {}};
  std::vector<WorkerDraft> workers;
  for (int rank = 0; rank < schedule.nranks; ++rank)
    for (int worker = 0; worker <= below(2, random); ++worker) workers.push_back({rank, {}});

  const int wanted = 1 + below(5, random);
  while (length(schedule.connections) < wanted) {
    WorkerDraft& sender = at(workers, below(length(workers), random));
    WorkerDraft& receiver = at(workers, below(length(workers), random));
    if (sender.rank == receiver.rank) continue;
    const int connection = length(schedule.connections);
    schedule.connections.push_back({sender.rank, receiver.rank, 0, /*tag=*/connection});
    for (int chunk = 0; chunk <= below(3, random); ++chunk) {
      sender.transfers.push_back({connection, true});
      receiver.transfers.push_back({connection, false});
    }
  }

  schedule.ranks.assign(static_cast<size_t>(schedule.nranks), std::vector<Channel>(1));
  for (WorkerDraft& draft : workers) {
    if (draft.transfers.empty()) continue;
    std::shuffle(draft.transfers.begin(), draft.transfers.end(), random);
    std::vector<Worker>& built = at(schedule.ranks, draft.rank)[0].workers;
    Worker worker{.weight = 1, .instructions = pair_up(draft.transfers, random)};
    for (Instruction& instruction : worker.instructions)
      if (instruction.target) instruction.target = scratch(length(built));
    built.push_back(std::move(worker));
  }
  return schedule;
}

bool finishes_in_random_order(const Schedule& schedule, int depth, int rounds,
                              std::mt19937& random) {
  struct Running {
    const Worker* worker;
    int next = 0;
    int left;  // rounds, this one included
  };
  std::vector<Running> workers;
  for (const std::vector<Channel>& channels : schedule.ranks)
    for (const Worker& worker : channels[0].workers) workers.push_back({&worker, 0, rounds});
  std::vector<int> filled(schedule.connections.size());

  const auto can_run = [&](const Running& running) {
    if (running.left == 0) return false;
    const Instruction& i = at(running.worker->instructions, running.next);
    return std::all_of(i.receive_from.begin(), i.receive_from.end(),
                       [&](int c) { return at(filled, c) > 0; }) &&
           std::all_of(i.send_to.begin(), i.send_to.end(),
                       [&](int c) { return at(filled, c) < depth; });
  };
  while (true) {
    std::vector<Running*> able;
    for (Running& running : workers)
      if (can_run(running)) able.push_back(&running);
    if (able.empty()) break;
    Running& running = *at(able, below(length(able), random));
    const Instruction& i = at(running.worker->instructions, running.next);
    for (const int c : i.receive_from) --at(filled, c);
    for (const int c : i.send_to) ++at(filled, c);
    if (++running.next < length(running.worker->instructions)) continue;
    running.next = 0;
    --running.left;
  }
  return std::all_of(workers.begin(), workers.end(), [](const Running& r) { return r.left == 0; });
}

}  // namespace niccolite::schedule
