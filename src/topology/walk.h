// Walk: an order of the GPUs of one machine in which each is near the next.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// Walks from GPU to GPU of one machine. GPUs are named by their places in the list given to the
/// constructor. Remembers the direct NVLinks of earlier walks, and prefers others.
class Walks {
 public:
  /// `nodes`: of the graph; -1 for a rank whose GPU it does not have, which is far from all. The
  /// graph must outlive it.
  Walks(const Graph& graph, std::vector<int> nodes);

  struct Ends {
    int first = 0;
    int last = -1;           // -1: any
    bool is_closed = false;  // the hop from the last to the first counts, too
    int step = 1;            // among equally near ones the next upwards (1) or downwards (-1)
  };
  /// Returns an order of all places whose worst hop is the best possible. The search is bounded;
  /// past the bound, the next place is always the nearest one left.
  std::vector<int> find(const Ends& ends) const;
  /// Do all hops of `order`, closed, go over direct NVLinks that no walk has taken?
  bool is_free(std::span<const int> order) const;
  /// Takes the links of `order`.
  void take(std::span<const int> order, bool is_closed);

 private:
  using Hop = std::pair<PathType, double>;  // less is better: the type, then minus the bandwidth
  class Search;

  size_t pair_at(int from, int to) const {
    return static_cast<size_t>(from) * nodes_.size() + static_cast<size_t>(to);
  }
  Hop hop(int from, int to) const;
  bool is_direct(int from, int to) const;

  const Graph& graph_;
  const std::vector<int> nodes_;
  std::vector<int> taken_;  // by pair_at(): walks over this NVLink
};

}  // namespace niccolite::topology
