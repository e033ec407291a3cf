// Which ranks share a machine, for algorithms that use the links inside machines and the wires
// between them differently.
//
//   of_rank      0 0 0 1 1 1 1     three ranks on machine 0, four on machine 1
//   ranks(1)     3 4 5 6
//   local(5)     2
//   rails()      3                 of the machine with the fewest ranks: what every machine has
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms/options.h"
#include "algorithms/workers.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

class Machines {
 public:
  /// Reads `options.machines`, which check_options() has accepted; empty: all on one machine.
  Machines(int nranks, const Options& options);

  int count() const { return static_cast<int>(ranks_.size()); }
  /// Ranks of a machine, ascending.
  const std::vector<int>& ranks(int machine) const { return ranks_[static_cast<size_t>(machine)]; }
  int of(int rank) const { return of_rank_[static_cast<size_t>(rank)]; }
  /// The place of `rank` among the ranks of its machine.
  int local(int rank) const { return local_[static_cast<size_t>(rank)]; }
  /// The rank at `place` of `machine`, counted on from the first after the last.
  int rank_at(int machine, int place) const;
  /// The other ranks of the machine of `rank`, ascending.
  std::vector<int> neighbours(int rank) const;
  /// The other machines, by distance from `machine`: at each place of their lists all machines
  /// address, or hear from (`step` -1), different ones.
  std::vector<int> others(int machine, int step) const;
  int rails() const { return rails_; }
  /// The ranks of a rail, ascending: of each machine the one at that place.
  std::vector<int> ranks_of_rail(int rail) const;
  /// Ranks of the machine that has most.
  int most_ranks() const { return most_ranks_; }

 private:
  std::vector<int> of_rank_;
  std::vector<int> local_;
  std::vector<std::vector<int>> ranks_;
  int rails_ = 0;
  int most_ranks_ = 0;
};

/// The workers of one rank that store what comes: one, or among few ranks one for each connection,
/// so that what comes from the own machine is put where it belongs.
class GatherWorkers {
 public:
  GatherWorkers(schedule::Builder& builder, int rank, int nranks);
  /// `block`, which comes next from `from` over the connection of `tag`.
  void add(int from, int tag, int block);

 private:
  schedule::Builder& builder_;
  const int rank_;
  const bool by_connection_;
  std::map<std::pair<int, int>, schedule::WorkerBuilder> workers_;  // by sender and tag
};

}  // namespace niccolite::algorithms
