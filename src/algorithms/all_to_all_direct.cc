// Direct all-to-all: everybody sends each block to its receiver.
//
//              push worker                                  gather worker
//   rank 0   b1 -> 1, b2 -> 2, b3 -> 3, b0 -> b0     b3 <- 3, b2 <- 2, b1 <- 1
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0, b1 -> b1     b0 <- 0, b3 <- 3, b2 <- 2
//   rank 2   b3 -> 3, b0 -> 0, b1 -> 1, b2 -> b2     b1 <- 1, b0 <- 0, b3 <- 3
//   rank 3   b0 -> 0, b1 -> 1, b2 -> 2, b3 -> b3     b2 <- 2, b1 <- 1, b0 <- 0
//
// Claim: 2n - 1 instructions per rank and one network latency, the least possible; each rank sends
// n - 1 blocks, the least possible; FIFO depth >= 1.
//
// Two workers let the rounds overlap. At each place of the lists all ranks address different peers.
// The own block comes last: nobody waits for it. "direct_workers" has a worker for each
// instruction.
#include "algorithms/all_to_all.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

Result<Schedule> build(const char* name, Workers workers, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(workers), options));
  if (nranks == 1) return alone(Collective::AllToAll, name);
  Builder builder(
      {.collective = Collective::AllToAll, .algorithm = name, .nranks = nranks, .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    WorkerSpreader spreader(builder, rank, nranks, workers, options);
    for (const int receiver : peers_by_distance(rank, nranks, 1)) {
      WorkerBuilder worker = spreader.of(kPushWorker);
      worker.add({.source = input(receiver), .send_to = worker.to(receiver)});
    }
    spreader.of(kPushWorker).add({.source = input(rank), .target = output(rank)});
    // Rank - 1 sends here first, rank + 1 last.
    for (const int sender : peers_by_distance(rank, nranks, -1)) {
      WorkerBuilder worker = spreader.of(kGatherWorker);
      worker.add({.receive_from = worker.from(sender), .target = output(sender)});
    }
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> all_to_all_direct(int nranks, const Options& options) {
  return build("direct", Workers::ByPhase, nranks, options);
}

Result<Schedule> all_to_all_direct_workers(int nranks, const Options& options) {
  return build("direct_workers", Workers::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
