// Two-shot all-reduce: rank b owns block b. Everybody pushes each block to its owner, owners
// reduce, and push the sums to all.
//
//              push worker                reduce worker                            gather worker
//   rank 0   b1 -> 1, b2 -> 2     b0: 0 + 1 + 2 -> output, 1, 2     b2 <- 2, b1 <- 1 -> output
//   rank 1   b2 -> 2, b0 -> 0     b1: 0 + 1 + 2 -> output, 2, 0     b0 <- 0, b2 <- 2 -> output
//   rank 2   b0 -> 0, b1 -> 1     b2: 0 + 1 + 2 -> output, 0, 1     b1 <- 1, b0 <- 0 -> output
//
// Claim: 2n - 1 instructions per rank but only two network latencies; each rank sends 2(n - 1)/n of
// the data, the least possible; FIFO depth >= 1. Each block is reduced once, by its owner, in
// ascending rank order in one instruction, so results are bitwise equal on all ranks and no partial
// sum is ever rounded.
//
// Three workers let the rounds overlap: while one round is reduced, the next is pushed and the last
// one gathered. The workers share buffers in place, and causality keeps them apart: gather writes
// block p at rank r only when p's sum has arrived, which contains what r's push read there.
// Instructions may have a worker each (lowering/spread.h): the same causality keeps them apart. An
// owner may then read block b of all inputs itself, reduce, and store the sums to all: it reads
// each element before it sends what replaces it.
//
// Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004, with both
// halves done directly.
#include "algorithms/all_reduce.h"
#include "algorithms/instructions.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "two_shot";

// Two connections from each rank to each other.
constexpr int kPush = 0;  // inputs, to the block's owner
constexpr int kSums = 1;  // sums, from the block's owner

}  // namespace

Result<Schedule> all_reduce_two_shot(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllReduce, kName);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    PhaseWorkers workers(builder, rank, options);
    for (const int owner : peers_by_distance(rank, nranks, 1)) {
      WorkerBuilder& worker = workers[kPushWorker];
      worker.add({.source = input(owner), .send_to = worker.to(owner, kPush)});
    }
    WorkerBuilder& reducer = workers[kReductionWorker];
    Instruction reduction = reduction_of_all(reducer, rank, nranks, kPush, rank);
    reduction.target = output(rank);
    reduction.send_to = reducer.to(peers_by_distance(rank, nranks, 1), kSums);
    reducer.add(std::move(reduction));
    // Owner rank - 1 sends here first, rank + 1 last.
    for (const int owner : peers_by_distance(rank, nranks, -1)) {
      WorkerBuilder& worker = workers[kGatherWorker];
      worker.add({.receive_from = worker.from(owner, kSums), .target = output(owner)});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
