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
// The own block comes last: nobody waits for it.
#include "algorithms/all_to_all.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

}  // namespace

Result<Schedule> all_to_all_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllToAll, kName);
  Builder builder({.collective = Collective::AllToAll,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    for (const int receiver : peers_by_distance(rank, nranks, 1)) {
      WorkerBuilder& worker = workers[kPushWorker];
      worker.add({.source = input(receiver), .send_to = worker.to(receiver)});
    }
    workers[kPushWorker].add({.source = input(rank), .target = output(rank)});
    // Rank - 1 sends here first, rank + 1 last.
    for (const int sender : peers_by_distance(rank, nranks, -1)) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add({.receive_from = worker.from(sender), .target = output(sender)});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
