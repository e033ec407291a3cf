// The owners of blocks where all ranks but the root own one: block i belongs to the rank i + 1
// places behind the root.
#pragma once

#include <vector>

#include "algorithms/options.h"

namespace niccolite::algorithms {

struct Owners {
  int root;
  int nranks;  // at least 2

  int count() const { return nranks - 1; }
  int rank_of(int block) const { return (root + 1 + block) % nranks; }
  /// Returns the block of a rank that is not the root.
  int block_of(int rank) const { return (rank - root - 1 + nranks) % nranks; }

  /// The other owners, in the order block + step, block + 2 * step, ...
  std::vector<int> others(int block, int step) const {
    std::vector<int> ranks;
    for (const int other : peers_by_distance(block, count(), step)) ranks.push_back(rank_of(other));
    return ranks;
  }
};

}  // namespace niccolite::algorithms
