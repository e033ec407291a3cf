// PAT gather: the blocks come to the root along a binomial tree, near ranks' first.
//
//   n = 6, root 0; ranks by distance from the root    0 <- 1 <- 3
//                                                       <- 1 <- 5     each hands on blocks below
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

void add_worker(WorkerBuilder worker, int rank, const BinomialTree& tree) {
  for (const int owner : tree.subtree(rank))
    worker.add(passed_on(worker, {.from = tree.towards(rank, owner),
                                  .to = tree.above(rank),
                                  .source = input(0),
                                  .target = output(owner),
                                  .chunk_of = owner}));
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
  const BinomialTree tree{options.root, nranks};
  for (const int rank : ranks_to_build(nranks, options))
    add_worker(builder.add_worker(rank), rank, tree);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
