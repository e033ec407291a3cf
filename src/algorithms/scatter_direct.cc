// Direct scatter: the root sends each block to its receiver.
//
//   root 1
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0, b1 -> output
//   rank 0   rank 1 -> output
//   rank 2   rank 1 -> output
//   rank 3   rank 1 -> output
//
// Claim: n instructions at the root, 1 elsewhere; one network latency, the least possible; the root
// sends n - 1 blocks; FIFO depth >= 1. The own block comes last: nobody waits for it.
//
// With a worker for each instruction (lowering/spread.h) no peer's block waits for another's.
#include "algorithms/scatter.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

}  // namespace

Result<Schedule> scatter_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Scatter, kName);
  const int root = options.root;
  Builder builder({.collective = Collective::Scatter,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    if (rank != root) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add({.receive_from = worker.from(root), .target = output(0)});
      continue;
    }
    for (const int receiver : peers_by_distance(root, nranks, 1)) {
      WorkerBuilder& worker = workers[kPushWorker];
      worker.add({.source = input(receiver), .send_to = worker.to(receiver)});
    }
    workers[kPushWorker].add({.source = input(root), .target = output(0)});
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
