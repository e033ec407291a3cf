// Double binary tree broadcast: the root gives each tree of the other ranks its half of the data,
// and every rank passes it on to those below (tree.h).
//
//   root 0, tree 0 of the others: 1 <- 3 <- 2
//   rank 0   input(0) -> output, 1
//   rank 1   0 -> output, 3
//   rank 3   1 -> output, 2
//   rank 2   3 -> output
//
// Claim: 2 instructions per rank, one for each tree; the depth of the trees and one more as network
// latencies; no rank sends more than the data once where all are on one machine; FIFO depth >= 1;
// two blocks. Source: tree.h.
#include "algorithms/broadcast.h"
#include "algorithms/tree.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {
constexpr const char* kName = "tree";
}

Result<Schedule> broadcast_tree(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::Broadcast, kName);
  const DoubleTree trees = DoubleTree::below(Machines(nranks, options), nranks, options.root);
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = kTrees,
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options)) {
    for (int tree = 0; tree < kTrees; ++tree) {
      WorkerBuilder worker = builder.add_worker(rank);
      worker.add(passed_down(worker, trees.edges(rank, tree), input(tree), output(tree)));
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
