// Hierarchical reduce-scatter: each machine sums its inputs for each rank of another one, and sends
// the sum there; the receiver reduces the machines' sums with the inputs of its own machine.
//
//   machines {0, 1} and {2, 3}
//            push                    sums for others          result
//   rank 0   b3, b1 -> 1             b2: 0+1 -> 2             b0: 0+1+(2+3) -> output
//   rank 1   b2, b0 -> 0             b3: 0+1 -> 3             b1: 0+1+(2+3) -> output
//   rank 2   b1, b3 -> 3             b0: 2+3 -> 0             b2: (0+1)+2+3 -> output
//   rank 3   b0, b2 -> 2             b1: 2+3 -> 1             b3: (0+1)+2+3 -> output
//
// Claim: n - 1 blocks pushed or summed per rank; two network latencies, one of them between
// machines; over the wires goes one block for each rank and other machine, from the rank that sums
// it (its own rail); FIFO depth >= 1. Partial sums travel: each machine's, reduced in ascending
// rank order, and reduced again in ascending order of the ranks they come from. Pushes and sums go
// through other machines by distance, and through the ranks there, in the same order, so that the
// first to wait is never waited for. On one machine it is the direct one. Source: as the
// hierarchical all-gather, reversed.
#include "algorithms/instructions.h"
#include "algorithms/machines.h"
#include "algorithms/reduce_scatter.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

constexpr int kOwn = 0;     // to the rank whose block it is
constexpr int kOthers = 1;  // to the rank of the own machine that sums it

enum Phase : size_t { kPush, kSum, kResult };

void add_rank(Builder& builder, const Machines& machines, int rank) {
  const int machine = machines.of(rank);
  PhaseWorkers workers(builder, rank);
  std::vector<Contribution> own, others;
  for (const int neighbour : machines.neighbours(rank)) {
    own.push_back({neighbour, kOwn});
    others.push_back({neighbour, kOthers});
  }
  for (const int other : machines.others(machine, 1)) {
    own.push_back({machines.rank_at(other, machines.local(rank)), kOwn});
    for (const int receiver : machines.ranks(other)) {
      const int summer = machines.rank_at(machine, machines.local(receiver));
      WorkerBuilder& worker = workers[summer == rank ? kSum : kPush];
      Instruction instruction{.source = input(receiver)};
      if (summer == rank) instruction = reduction_of(worker, rank, others, receiver);
      instruction.send_to = summer == rank ? worker.to(receiver, kOwn) : worker.to(summer, kOthers);
      worker.add(std::move(instruction));
    }
  }
  for (const int neighbour : machines.neighbours(rank))
    workers[kPush].add({.source = input(neighbour), .send_to = workers[kPush].to(neighbour, kOwn)});
  Instruction result = reduction_of(workers[kResult], rank, own, rank);
  result.target = output(0);
  result.finish = true;
  workers[kResult].add(std::move(result));
}

}  // namespace

Result<Schedule> reduce_scatter_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(reduce_scatter_direct(nranks, options), kName);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
