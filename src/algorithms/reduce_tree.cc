// Double binary tree reduce: a broadcast by the same trees, the other way round (tree.h).
//
//   root 0, tree 0 of the others: 1 <- 3 <- 2
//   rank 2   input(0) -> 3
//   rank 3   2 + input(0) -> 1
//   rank 1   input(0) + 3 -> 0
//   rank 0   input(0) + 1 -> output
//
// Claim: 2 instructions per rank, one for each tree; the depth of the trees and one more as network
// latencies; every rank but the root sends the data once; FIFO depth >= 1; two blocks. Partial sums
// travel, reduced in ascending order of the ranks at the tops of subtrees. Source: tree.h.
#include "algorithms/reduce.h"
#include "algorithms/tree.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {
constexpr const char* kName = "tree";
}

Result<Schedule> reduce_tree(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::Reduce, kName);
  const DoubleTree trees = DoubleTree::below(Machines(nranks, options), nranks, options.root);
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = kTrees,
                   .root = options.root,
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options)) {
    for (int tree = 0; tree < kTrees; ++tree) {
      WorkerBuilder worker = builder.add_worker(rank);
      worker.add(reduced_up(worker, rank, trees.edges(rank, tree), tree, output(tree)));
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
