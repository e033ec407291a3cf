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
// All ranks go through the positions in the same order. Source: S. Jeaugey, "PAT: a new algorithm
// for all-gather and reduce-scatter operations at scale", 2025 (arXiv 2506.20252).
#pragma once

#include <vector>

#include "schedule/builder.h"

namespace niccolite::algorithms {

/// The dimension over which `position` > 0 is reached.
int pat_dimension(int position);

/// The dimensions over which `position` is passed on, far ones first.
std::vector<int> pat_forwards(int position, int nranks);

/// All positions, in an order that keeps at most `window` chunks of a dimension in flight: as ranks
/// run in step, what is passed on and not yet taken. Each chunk is taken as soon as that allows, so
/// that with window >= n/2 all of it takes floor(log2 n) latencies, and with a small one about
/// n/2 / window, which is how long the n/2 chunks of dimension 0 take.
std::vector<int> pat_order(int nranks, int window);

/// The rank `2^dimension` further on (back). All connections of PAT are between such.
constexpr int pat_rank_ahead(int rank, int dimension, int nranks) {
  return (rank + (1 << dimension)) % nranks;
}
constexpr int pat_rank_behind(int rank, int dimension, int nranks) {
  return (rank - (1 << dimension) + nranks) % nranks;
}

}  // namespace niccolite::algorithms
