// Direct reduce-scatter: everybody sends each block to its owner, who reduces them.
//
//              push worker                     reduce worker
//   rank 0   b1 -> 1, b2 -> 2, b3 -> 3    b0: 0 + 1 + 2 + 3 -> output
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0    b1: 0 + 1 + 2 + 3 -> output
//   rank 2   b3 -> 3, b0 -> 0, b1 -> 1    b2: 0 + 1 + 2 + 3 -> output
//   rank 3   b0 -> 0, b1 -> 1, b2 -> 2    b3: 0 + 1 + 2 + 3 -> output
//
// Claim: n instructions per rank and one network latency, the least possible; each rank sends n - 1
// blocks, the least possible; FIFO depth >= 1. Each block is reduced once, in ascending rank order
// in one instruction: no partial sum is ever rounded.
//
// Two workers let the rounds overlap. In place, the reduction writes the one block that the push
// does not read.
#include "algorithms/instructions.h"
#include "algorithms/reduce_scatter.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

}  // namespace

Result<Schedule> reduce_scatter_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::ReduceScatter, kName);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    for (const int owner : peers_by_distance(rank, nranks, 1)) {
      WorkerBuilder& worker = workers[kPushWorker];
      worker.add({.source = input(owner), .send_to = worker.to(owner)});
    }
    WorkerBuilder& reducer = workers[kReductionWorker];
    Instruction reduction = reduction_of_all(reducer, rank, nranks, /*tag=*/0, rank);
    reduction.target = output(0);
    reducer.add(std::move(reduction));
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
