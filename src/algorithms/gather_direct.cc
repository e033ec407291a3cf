// Direct gather: everybody sends its block to the root.
//
//   root 1
//   rank 1   input -> b1, b2 <- 2, b3 <- 3, b0 <- 0
//   rank 0   input -> 1
//   rank 2   input -> 1
//   rank 3   input -> 1
//
// Claim: n instructions at the root, 1 elsewhere; one network latency, the least possible; each
// rank but the root sends its block once; FIFO depth >= 1.
//
// With a worker for each instruction (lowering/spread.h) no peer's block waits for another's.
#include "algorithms/gather.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

}  // namespace

Result<Schedule> gather_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Gather, kName);
  const int root = options.root;
  Builder builder({.collective = Collective::Gather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    if (rank != root) {
      WorkerBuilder& worker = workers[kPushWorker];
      worker.add({.source = input(0), .send_to = worker.to(root)});
      continue;
    }
    workers[kGatherWorker].add({.source = input(0), .target = output(root)});
    for (const int sender : peers_by_distance(root, nranks, 1)) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add({.receive_from = worker.from(sender), .target = output(sender)});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
