// Hierarchical all-gather: each rank gives its block to the ranks of its machine, and to one of
// each other machine, which passes it on to the ranks of that one.
//
//   machines {0, 1} and {2, 3}
//            own block             pass on                    gather
//   rank 0   b0 -> output, 1, 2    b2: 2 -> output, 1         b1 <- 1, b3 <- 1
//   rank 1   b1 -> output, 0, 3    b3: 3 -> output, 0         b0 <- 0, b2 <- 0
//   rank 2   b2 -> output, 3, 0    b0: 0 -> output, 3         b3 <- 3, b1 <- 3
//   rank 3   b3 -> output, 2, 1    b1: 1 -> output, 2         b2 <- 2, b0 <- 2
//
// Claim: n instructions per rank; two network latencies, one of them between machines; each block
// goes over the wire to each other machine once, the least possible without a chain of machines,
// from its own rank (its own rail); FIFO depth >= 1. Where machines have different numbers of
// ranks, some take the blocks of several. On one machine it is the direct one. Source: R. Thakur,
// R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005,
// at two levels.
#include "algorithms/all_gather.h"
#include "algorithms/machines.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

constexpr int kOwn = 0;     // from the rank whose block it is
constexpr int kPassed = 1;  // from the rank of the own machine that got it from another one

enum Phase : size_t { kPush, kPass };

void add_rank(Builder& builder, const Machines& machines, int rank, int nranks) {
  const int machine = machines.of(rank);
  const std::vector<int> neighbours = machines.neighbours(rank);
  PhaseWorkers workers(builder, rank);
  GatherWorkers gathers(builder, rank, nranks);
  std::vector<int> receivers;  // wires first
  for (const int other : machines.others(machine, 1))
    receivers.push_back(machines.rank_at(other, machines.local(rank)));
  receivers.insert(receivers.end(), neighbours.begin(), neighbours.end());
  workers[kPush].add(
      {.source = input(0), .target = output(rank), .send_to = workers[kPush].to(receivers, kOwn)});

  for (const int neighbour : neighbours) gathers.add(neighbour, kOwn, neighbour);
  for (const int other : machines.others(machine, -1)) {
    for (const int owner : machines.ranks(other)) {
      const int taker = machines.rank_at(machine, machines.local(owner));
      if (taker != rank) {
        gathers.add(taker, kPassed, owner);
        continue;
      }
      WorkerBuilder& worker = workers[kPass];
      worker.add({.receive_from = worker.from(owner, kOwn),
                  .target = output(owner),
                  .send_to = worker.to(neighbours, kPassed)});
    }
  }
}

}  // namespace

Result<Schedule> all_gather_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_gather_direct(nranks, options), kName);
  Builder builder({.collective = Collective::AllGather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank, nranks);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
