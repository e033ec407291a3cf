// Hierarchical reduce: inside each machine every local rank sums one block, the sums go along a
// chain of machines to the root's, each on its own rail, and there to the root.
//
//   root 0; machines {0, 1}, {2, 3}
//            push        sums                            results
//   rank 2   b1 -> 3     b0: 2+3 -> 0
//   rank 3   b0 -> 2     b1: 2+3 -> 1
//   rank 0   b1 -> 1     b0: 0+1+(2+3) -> output         b1 <- 1 -> output
//   rank 1   b0 -> 0     b1: 0+1+(2+3) -> 0
//
// Claim: as many blocks as rails; N + 1 network latencies, N - 1 of them between machines; each
// machine but the root's sends the data once over its wires, the least possible, in equal parts
// over its rails; FIFO depth >= 1. Partial sums travel, the chain's reduced in the order of the
// ranks that they come from. On one machine it is the two-shot. Source: the hierarchical broadcast,
// reversed.
#include "algorithms/instructions.h"
#include "algorithms/machines.h"
#include "algorithms/reduce.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

constexpr int kRail = 0;    // inputs to their block's owner, and sums from machine to machine
constexpr int kResult = 1;  // to the root

enum Phase : size_t { kPush, kSum, kGather };

void add_rank(Builder& builder, const Machines& machines, int rank, int root) {
  const int machine = machines.of(rank), last = machines.of(root);
  const int next = (machine + 1) % machines.count();
  const int before = (machine + machines.count() - 1) % machines.count();
  PhaseWorkers workers(builder, rank);
  for (int rail = 0; rail < machines.rails(); ++rail) {
    const int owner = machines.rank_at(machine, rail);
    if (owner != rank) {
      workers[kPush].add({.source = input(rail), .send_to = workers[kPush].to(owner, kRail)});
      if (rank == root)
        workers[kGather].add(
            {.receive_from = workers[kGather].from(owner, kResult), .target = output(rail)});
      continue;
    }
    std::vector<Contribution> sums;
    for (const int neighbour : machines.neighbours(rank)) sums.push_back({neighbour, kRail});
    const bool is_first = before == last;  // of the chain
    if (!is_first) sums.push_back({machines.rank_at(before, rail), kRail});
    WorkerBuilder& worker = workers[kSum];
    Instruction reduction = reduction_of(worker, rank, std::move(sums), rail);
    reduction.finish = machine == last;
    if (rank == root) {
      reduction.target = output(rail);
    } else if (machine == last) {
      reduction.send_to = worker.to(root, kResult);
    } else {
      reduction.send_to = worker.to(machines.rank_at(next, rail), kRail);
    }
    worker.add(std::move(reduction));
  }
}

}  // namespace

Result<Schedule> reduce_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(reduce_two_shot(nranks, options), kName);
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = machines.rails(),
                   .root = options.root,
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options))
    add_rank(builder, machines, rank, options.root);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
