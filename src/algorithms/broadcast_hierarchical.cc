// Hierarchical broadcast: the root scatters the data over its machine, each local rank sends its
// part along a chain of machines on its own rail, and passes it on inside its machine.
//
//   root 0; machines {0, 1}, {2, 3}, {4, 5}
//            rail                           gather
//   rank 0   b0 -> output, 2, 1; b1 -> output, 1
//   rank 1   b1: 0 -> output, 3             b0 <- 0
//   rank 2   b0: 0 -> output, 4, 3          b1 <- 3
//   rank 3   b1: 1 -> output, 5, 2          b0 <- 2
//   rank 4   b0: 2 -> output, 5             b1 <- 5
//   rank 5   b1: 3 -> output, 4             b0 <- 4
//
// Claim: as many blocks as rails, and instructions per rank; N + 1 network latencies, N - 1 of them
// between machines; each machine sends and receives the data once over its wires, the least
// possible, in equal parts over its rails; FIFO depth >= 1. Rails are as many as the machine with
// the fewest ranks has ranks. On one machine it is scatter-gather. Source: the pipelined chain
// (broadcast_ring.cc) and M. Barnett et al. (broadcast_scatter_gather.cc), at two levels.
#include "algorithms/broadcast.h"
#include "algorithms/machines.h"
#include "algorithms/workers.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

constexpr int kRail = 0;    // from the root, and from machine to machine
constexpr int kPassed = 1;  // inside a machine, by the owner of the block

void add_rank(Builder& builder, const Machines& machines, int rank, int root) {
  const int machine = machines.of(rank), first = machines.of(root);
  const int next = (machine + 1) % machines.count();
  const int before = (machine + machines.count() - 1) % machines.count();
  std::vector<int> takers = machines.neighbours(rank);
  std::erase(takers, root);
  PhaseWorkers workers(builder, rank);
  for (int rail = 0; rail < machines.rails(); ++rail) {
    const int owner = machines.rank_at(machine, rail);
    // The wire need not wait for blocks that others own. Each has a worker, if they are few: so
    // what comes from the own machine is put where it belongs.
    const bool has_worker = owner != rank && machines.rails() <= kMaxWorkersRanks;
    WorkerBuilder worker = has_worker ? builder.add_worker(rank) : workers[owner == rank ? 0 : 1];
    Instruction instruction{.target = output(rail)};
    if (rank == root) {
      instruction.source = input(rail);
    } else if (owner != rank) {
      instruction.receive_from = worker.from(owner, kPassed);
    } else {
      instruction.receive_from =
          worker.from(machine == first ? root : machines.rank_at(before, rail), kRail);
    }
    if (owner == rank) {
      if (next != first) instruction.send_to = worker.to(machines.rank_at(next, rail), kRail);
      for (const int taker : worker.to(takers, kPassed)) instruction.send_to.push_back(taker);
    } else if (rank == root) {
      instruction.send_to = worker.to(owner, kRail);
    }
    worker.add(std::move(instruction));
  }
}

}  // namespace

Result<Schedule> broadcast_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(broadcast_scatter_gather(nranks, options), kName);
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = machines.rails(),
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options))
    add_rank(builder, machines, rank, options.root);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
