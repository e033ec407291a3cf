// Scatter-gather broadcast: the root gives each other rank one block, and they give it to each
// other.
//
//   root 0        push worker                          gather worker
//   rank 0   b0 -> 1, b1 -> 2, b2 -> 3          b0, b1, b2 -> output
//   rank 1   b0: rank 0 -> output, 2, 3         b2 <- 3, b1 <- 2 -> output
//   rank 2   b1: rank 0 -> output, 3, 1         b0 <- 1, b2 <- 3 -> output
//   rank 3   b2: rank 0 -> output, 1, 2         b1 <- 2, b0 <- 1 -> output
//
// Claim: n - 1 blocks and as many instructions per rank, twice as many at the root; two network
// latencies; the root sends the data once, the least possible, the others (n - 2)/(n - 1) of it;
// FIFO depth >= 1.
//
// Two workers let the rounds overlap: while one gathers the blocks of a round, the other forwards
// the blocks of the next. They share nothing, as each block is written by one worker. Block i
// belongs to the rank i + 1 places behind the root. With a worker for each instruction
// (lowering/spread.h) an owner may read its block of the root's input itself and store it to all,
// in one go: the first latency goes, and no part of the data waits for another.
//
// Source: M. Barnett et al., "Interprocessor collective communication library (InterCom)", 1994,
// with both halves done directly.
#include "algorithms/broadcast.h"
#include "algorithms/owners.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "scatter_gather";

// Connections from the root, and between the others.
constexpr int kScatter = 0;
constexpr int kGather = 1;

}  // namespace

Result<Schedule> broadcast_scatter_gather(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Broadcast, kName);
  const Owners owners{options.root, nranks};
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = owners.count(),
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    if (rank == options.root) {
      for (int block = 0; block < owners.count(); ++block) {
        WorkerBuilder& worker = workers[kPushWorker];
        worker.add({.source = input(block), .send_to = worker.to(owners.rank_of(block), kScatter)});
      }
      for (int block = 0; block < owners.count(); ++block)
        workers[kGatherWorker].add({.source = input(block), .target = output(block)});
      continue;
    }
    const int own = owners.block_of(rank);
    WorkerBuilder& forward = workers[kPushWorker];
    forward.add({.receive_from = forward.from(options.root, kScatter),
                 .target = output(own),
                 .send_to = forward.to(owners.others(own, 1), kGather)});
    // The owner before this one sends here first, the one after it last.
    for (const int owner : owners.others(own, -1)) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add(
          {.receive_from = worker.from(owner, kGather), .target = output(owners.block_of(owner))});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
