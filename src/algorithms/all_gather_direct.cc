// Direct all-gather: everybody sends its block to everybody.
//
//              push worker                    gather worker
//   rank 0   input -> b0, 1, 2, 3      b3 <- 3, b2 <- 2, b1 <- 1
//   rank 1   input -> b1, 2, 3, 0      b0 <- 0, b3 <- 3, b2 <- 2
//   rank 2   input -> b2, 3, 0, 1      b1 <- 1, b0 <- 0, b3 <- 3
//   rank 3   input -> b3, 0, 1, 2      b2 <- 2, b1 <- 1, b0 <- 0
//
// Claim: n instructions per rank and one network latency, the least possible; each rank reads its
// block once and sends it n - 1 times, the least possible; FIFO depth >= 1.
//
// Two workers let the rounds overlap. They write different blocks. Ranks start with different peers
// (rank + 1, rank + 2, ...) so that no receiver is addressed by all at once.
#include "algorithms/all_gather.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

}  // namespace

Result<Schedule> all_gather_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllGather, kName);
  Builder builder({.collective = Collective::AllGather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    WorkerBuilder& push = workers[kPushWorker];
    push.add({.source = input(0),
              .target = output(rank),
              .send_to = push.to(peers_by_distance(rank, nranks, 1))});
    // Rank - 1 sends here first, rank + 1 last.
    for (const int owner : peers_by_distance(rank, nranks, -1)) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add({.receive_from = worker.from(owner), .target = output(owner)});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
