// Two-shot reduce: every rank but the root owns a block. Everybody pushes each block to its owner;
// owners reduce, and push the sums to the root.
//
//   root 0        push worker                  reduce worker
//   rank 0   b0 -> 1, b1 -> 2, b2 -> 3   (gather: b0 <- 1, b1 <- 2, b2 <- 3 -> output)
//   rank 1   b1 -> 2, b2 -> 3            b0: 0 + 1 + 2 + 3 -> 0
//   rank 2   b2 -> 3, b0 -> 1            b1: 0 + 1 + 2 + 3 -> 0
//   rank 3   b0 -> 1, b1 -> 2            b2: 0 + 1 + 2 + 3 -> 0
//
// Claim: n - 1 blocks and instructions per rank, twice as many at the root; two network latencies;
// each rank sends the data once, and the root receives them once, the least possible (the root of
// the direct reduce takes n - 1 times the data); FIFO depth >= 1. Each block is reduced once, in
// ascending rank order in one instruction: no partial sum is ever rounded, and the result does not
// depend on the root.
//
// The root reduces nothing, though it could own a block, too: it would receive n - 1 inputs of that
// block beside the sums of the others, more than any other rank.
//
// In place is safe: block b of the root's output gets the sum of block b of its input, and so comes
// after the input has been read. The same causality keeps instructions apart that have a worker
// each (lowering/spread.h). An owner may then read its block of all inputs itself, reduce, and
// store the sums to the root: it reads each element before it sends the sum that replaces it.
//
// Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004 (reduce), with
// both halves done directly, and with a root that does not reduce.
#include "algorithms/instructions.h"
#include "algorithms/owners.h"
#include "algorithms/reduce.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "two_shot";

// Connections to the block's owner, and from it to the root.
constexpr int kPush = 0;
constexpr int kSums = 1;

void add_pushes(PhaseWorkers& workers, const Owners& owners, const std::vector<int>& to) {
  for (const int owner : to) {
    WorkerBuilder& worker = workers[kPushWorker];
    worker.add({.source = input(owners.block_of(owner)), .send_to = worker.to(owner, kPush)});
  }
}

}  // namespace

Result<Schedule> reduce_two_shot(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Reduce, kName);
  const Owners owners{options.root, nranks};
  // By phase, two owners' push workers could expose: each holds one instruction. The root's does
  // not.
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = owners.count(),
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    if (rank == options.root) {
      const std::vector<int> all = peers_by_distance(rank, nranks, 1);
      add_pushes(workers, owners, all);
      for (const int owner : all) {
        WorkerBuilder& worker = workers[kGatherWorker];
        worker.add(
            {.receive_from = worker.from(owner, kSums), .target = output(owners.block_of(owner))});
      }
      continue;
    }
    const int own = owners.block_of(rank);
    add_pushes(workers, owners, owners.others(own, 1));
    WorkerBuilder& reducer = workers[kReductionWorker];
    Instruction reduction = reduction_of_all(reducer, rank, nranks, kPush, own);
    reduction.send_to = reducer.to(options.root, kSums);
    reducer.add(std::move(reduction));
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
