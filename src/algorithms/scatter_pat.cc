// PAT scatter: the blocks go from the root along a binomial tree, far ranks' first. The PAT gather
// with every arrow and the order turned round.
//
//   n = 6, root 0; ranks by distance from the root    0 -> 1 -> 3
//                                                       -> 1 -> 5     each hands on what is below
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

void add_worker(WorkerBuilder worker, int distance, int n, int root) {
  const auto rank_at = [&](int of) { return (root + of) % n; };
  std::vector<int> order = pat_subtree(distance, n);
  std::reverse(order.begin(), order.end());
  for (const int to : order) {
    Instruction instruction;
    if (distance == 0)
      instruction.source = input(rank_at(to));
    else
      instruction.receive_from = worker.from(rank_at(pat_parent(distance)));
    if (to == distance)
      instruction.target = output(0);
    else
      instruction.send_to = worker.to(rank_at(pat_child(distance, to)));
    if (!instruction.source && !instruction.target) instruction.chunk_of = rank_at(to);
    worker.add(std::move(instruction));
  }
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
  for (const int rank : ranks_to_build(nranks, options)) {
    const int distance = (rank - options.root + nranks) % nranks;
    add_worker(builder.add_worker(rank), distance, nranks, options.root);
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
