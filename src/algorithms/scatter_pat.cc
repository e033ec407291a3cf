// PAT scatter: the blocks go from the root along a binomial tree, far ranks' first. The PAT gather
// with every arrow and the order turned round.
//
//   n = 6, root 0; ranks by distance from the root    0 -> 1 -> 3
//                                                       -> 1 -> 5     each hands on blocks below
//                                                       -> 2          it, by descending distance
//                                                       -> 4
//   root     b5 -> 1, b4 -> 4, b3 -> 1, b2 -> 2, b1 -> 1, b0 -> output
//   rank 1   b5 from 0 -> 5, b3 from 0 -> 3, b1 from 0 -> output
//   rank 3   b3 from 1 -> output
//
// Claim: n instructions at the root, elsewhere one for each rank of the own subtree; no rank has
// more than ceil(log2 n) + 1 connections; the root sends each block once; FIFO depth >= 1; any n. A
// rank waits for data from above and for room below, where nobody waits for more than that, so that
// nothing can deadlock. The direct one has a connection of the root for each rank.
#include <algorithm>

#include "algorithms/pat.h"
#include "algorithms/scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_worker(WorkerBuilder worker, int rank, const BinomialTree& tree) {
  std::vector<int> receivers = tree.subtree(rank);
  std::ranges::reverse(receivers);
  for (const int receiver : receivers)
    worker.add(passed_on(worker, {.from = tree.above(rank),
                                  .to = tree.towards(rank, receiver),
                                  .source = input(receiver),
                                  .target = output(0),
                                  .chunk_of = receiver}));
}

}  // namespace

Result<Schedule> scatter_pat(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::Scatter, kName);
  Builder builder({.collective = Collective::Scatter,
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
