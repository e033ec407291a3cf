// PAT (parallel aggregated trees): who takes which block from whom, and in which order, so that all
// ranks move all blocks along binomial trees at the same time.
//
// A block has at each rank a position: its owner's rank less this one, modulo n. Position s > 0 is
// reached over dimension d, the lowest set bit of s, from the rank 2^d further on, where the block
// has position s - 2^d; and is passed on over all dimensions below d. So far ranks come first:
//
//                0            n = 8: the positions, and how they are reached. The owner (0) passes
//          +-----+--+---+     over dimensions 2, 1, 0; position 4 over 1, 0; and so on. With n < 8
//          4        2   1     positions from n on do not exist, at either end.
//        +-+-+      |
//        6   5      3
//        |
//        7
//
// All ranks go through the positions in the same order.
//
// On several machines, all-gather and reduce-scatter have trees over machines: the description of
// ranks above then holds for machines. Each rank has the trees of the blocks at its own place of
// every machine, so that all ranks of a machine send over its wires (pat_turns()).
//
// Source: S. Jeaugey, "PAT: a new algorithm
// for all-gather and reduce-scatter operations at scale", 2025 (arXiv 2506.20252).
#pragma once

#include <vector>

#include "algorithms/instructions.h"
#include "algorithms/machines.h"

namespace niccolite::algorithms {

/// The dimension over which `position` > 0 is reached.
int pat_dimension(int position);

/// The dimensions over which `position` is passed on, far ones first.
std::vector<int> pat_forwards(int position, int nranks);

/// Returns all positions, in an order that keeps at most `window` chunks of a dimension in flight.
/// As ranks run in step, a chunk is in flight when it is passed on and not yet taken. Each chunk is
/// taken as soon as that allows, so that with window >= n/2 all of it takes floor(log2 n)
/// latencies, and with a small one about n/2 / window, which is how long the n/2 chunks of
/// dimension 0 take.
std::vector<int> pat_order(int nranks, int window);

/// Returns the machines that trees are over: the machines of `options`, or each rank as a machine
/// of its own, if all ranks are on one, or some machine has more ranks than can be connected to
/// each other.
Machines pat_machines(int nranks, const Options& options);

/// One block at one machine: the machine that its owner is on has `position` there.
struct PatTurn {
  int position;
  int owner;
  int handler;  // the rank here that has it from, and passes it on to, other machines
};

/// Returns all blocks at `machine`, in an order that is equal at all machines, in the positions
/// `order`. Blocks of as many places as the smallest machine has ranks take turns. Blocks of
/// further places, where some rank handles blocks of two, come after all of these.
std::vector<PatTurn> pat_turns(const Machines& machines, int machine,
                               const std::vector<int>& order);

/// The peers of `turn.handler` in the tree of the turn's block. Above: the handler at the machine
/// that the block comes from. Below: the handlers at the machines that it is passed on to, far ones
/// first, then the neighbours of `turn.handler`.
///
///     handler, 2^d machines further on           d: pat_dimension(position)
///                    |
///              turn.handler
///          +---------+---------+
///   handlers, 2^f          neighbours            f: each of pat_forwards(position)
///   machines back
TreeEdges pat_edges(const Machines& machines, const PatTurn& turn);

/// One step of a block that goes from its owner to one rank alone, which has position `to`: it is
/// at the position `at`, and goes on over the highest dimension in which the two differ. The
/// positions on its way lie in the block's tree: `to` with some of its low bits cleared.
struct PatHop {
  int to;
  int at;
};

/// All steps of the blocks for all positions but the owner's, in the order in which every rank
/// takes its part of them (of the block for the rank `to - at` back), so that at most `window`
/// chunks of a dimension are in flight. A step is taken as soon as that allows; farther ones first.
std::vector<PatHop> pat_hops(int nranks, int window);

/// The dimension over which a block leaves the position `at` for `to`.
int pat_next_dimension(const PatHop& hop);

/// The binomial tree of a gather or scatter. The distance of a rank is how far it is behind the
/// root, modulo n; each hangs on the rank whose distance lacks its highest bit.
///
///                0            n = 8: the distances. The subtree of 1 is 1, 3, 5, 7: those whose
///          +-----+--+---+     low bits are its own.
///          1        2   4
///        +-+-+      |
///        3   5      6
///        |
///        7
struct BinomialTree {
  int root;
  int nranks;

  /// -1: of the root.
  int above(int rank) const;
  /// `rank` and all below it, by ascending distance.
  std::vector<int> subtree(int rank) const;
  /// The rank below `rank` whose subtree has `other`, one of its own; -1: `other` is itself.
  int towards(int rank, int other) const;

  int distance_of(int rank) const { return (rank - root + nranks) % nranks; }
  int rank_at(int distance) const { return (root + distance) % nranks; }
};

/// The rank `2^dimension` further on (back). All connections of PAT are between such.
constexpr int pat_rank_ahead(int rank, int dimension, int nranks) {
  return (rank + (1 << dimension)) % nranks;
}
constexpr int pat_rank_behind(int rank, int dimension, int nranks) {
  return (rank - (1 << dimension) + nranks) % nranks;
}

}  // namespace niccolite::algorithms
