// Double binary tree all-reduce: up each tree goes the sum of its half of the data, and down again
// the result (tree.h).
//
//   tree 0 of four ranks: 0 <- 2 <- {1, 3}
//            up worker                              down worker
//   rank 1   input(0) -> 2                        2 -> output
//   rank 3   input(0) -> 2                        2 -> output
//   rank 2   1 + input(0) + 3 -> 0                0 -> output, 1, 3
//   rank 0   input(0) + 2 -> output, 2            (the top: one instruction)
//
// Claim: at most 2 instructions per rank and tree; twice the depth of the trees as network
// latencies, floor(log2(n - 1)) + 1 each way; no rank sends more than twice the data; FIFO depth >=
// 1; two blocks, one for each tree. Partial sums travel: subtrees are reduced in ascending order of
// the ranks at their tops. All ranks get the sum that the top reduced, so results are bitwise equal
// on all of them. In place is safe: a rank overwrites a block only with the result, which contains
// the block's input.
//
// On several machines the trees connect machines, and ranks of a machine hang on its head.
// Source: tree.h.
#include "algorithms/all_reduce.h"
#include "algorithms/tree.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "tree";

/// Tag of tree 0's connections that carry results; without it, they share the connections of sums.
/// They are apart on several machines: in each machine, inputs then go one way, and results the
/// other, directly.
constexpr int kResults = 3;

void add_tree(Builder& builder, const DoubleTree& trees, int rank, int tree, int result_tag) {
  const TreeEdges edges = trees.edges(rank, tree);
  WorkerBuilder up = builder.add_worker(rank);
  Instruction reduction = reduced_up(up, rank, edges, tree, output(tree));
  if (edges.above < 0) {
    reduction.send_to = up.to(edges.below, result_tag);
    up.add(std::move(reduction));
    return;
  }
  up.add(std::move(reduction));
  WorkerBuilder down = builder.add_worker(rank);
  down.add({.receive_from = down.from(edges.above, result_tag),
            .target = output(tree),
            .send_to = down.to(edges.below, result_tag)});
}

}  // namespace

Result<Schedule> all_reduce_tree(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::AllReduce, kName);
  const Machines machines(nranks, options);
  const DoubleTree trees(machines, nranks);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = kTrees,
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options))
    for (int tree = 0; tree < kTrees; ++tree)
      add_tree(builder, trees, rank, tree, machines.count() > 1 ? kResults + tree : tree);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
