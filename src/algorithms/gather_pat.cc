// PAT gather: the blocks come to the root along a binomial tree, near ranks' first.
//
//   n = 6, root 0; ranks by distance from the root    0 <- 1 <- 3
//                                                       <- 1 <- 5     each hands on what is below
//                                                       <- 2          it, by ascending distance
//                                                       <- 4
//   root     input -> b0, b1 <- 1, b2 <- 2, b3 <- 1, b4 <- 4, b5 <- 1
//   rank 1   input -> 0, b3 from 3 -> 0, b5 from 5 -> 0
//   rank 3   input -> 1
//
// Claim: n instructions at the root, elsewhere one for each rank of the own subtree; no rank has
// more than ceil(log2 n) + 1 connections; the root receives each block once; FIFO depth >= 1; any
// n. A rank waits for those below it alone, so that nothing can deadlock. The direct one has a
// connection of the root for each rank.
#include "algorithms/gather.h"
#include "algorithms/pat.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_worker(WorkerBuilder worker, int distance, int n, int root) {
  const auto rank_at = [&](int of) { return (root + of) % n; };
  for (const int from : pat_subtree(distance, n)) {
    Instruction instruction;
    if (from == distance)
      instruction.source = input(0);
    else
      instruction.receive_from = worker.from(rank_at(pat_child(distance, from)));
    if (distance == 0)
      instruction.target = output(rank_at(from));
    else
      instruction.send_to = worker.to(rank_at(pat_parent(distance)));
    if (!instruction.source && !instruction.target) instruction.chunk_of = rank_at(from);
    worker.add(std::move(instruction));
  }
}

}  // namespace

Result<Schedule> gather_pat(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::Gather, kName);
  Builder builder({.collective = Collective::Gather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options)) {
    const int distance = (rank - options.root + nranks) % nranks;
    add_worker(builder.add_worker(rank), distance, nranks, options.root);
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
