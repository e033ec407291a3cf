// What a caller may tell an algorithm beside the number of ranks, and what algorithms share in
// reading it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::algorithms {

struct Options {
  /// Builds the lanes of this rank alone, which is all that executor::compile() needs of a
  /// schedule: O(nranks) instead of O(nranks^2). Every rank's part is the same as in the whole
  /// schedule; only the whole can be checked.
  std::optional<int> only_rank{};
  /// Rings: the orders in which data goes round, one pattern channel each. Each names every rank
  /// once. Empty: one ring, in rank order.
  std::vector<std::vector<int>> rings{};
  /// Two-shot: shares of a channel's warps for the lanes push, fold, gather.
  std::array<int, 3> weights{3, 3, 3};
};

/// InvalidArgument when `nranks` is outside [1, max_ranks] or `only_rank` is no rank.
Status check_options(const char* algorithm, int nranks, int max_ranks, const Options& options);

/// The ranks whose lanes are to be built.
std::vector<int> ranks_to_build(int nranks, const Options& options);

/// All other ranks, in the order rank + step, rank + 2 * step, ... modulo nranks. With step 1 or -1
/// all ranks together address each peer at a different time.
std::vector<int> peers_by_distance(int rank, int nranks, int step);

/// All other ranks, ascending.
std::vector<int> peers_ascending(int rank, int nranks);

/// One rank has nobody to talk to: any all-reduce is a scaled copy of the one block.
schedule::Schedule all_reduce_alone(const char* algorithm);

}  // namespace niccolite::algorithms
