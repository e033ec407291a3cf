// Rings: the orders in which the data of ring algorithms goes round the ranks, one for each pattern
// channel.
//
//   two machines of three GPUs, each with a network device of its own; a dash is a hop inside a
//   machine, an arrow one between machines
//
//   ring 0    0 - 1 - 2 => 5 - 4 - 3 => 0     enters at rail 0's rank, leaves at rail 2's
//   ring 1    1 - 2 - 0 => 3 - 5 - 4 => 1     in at rail 1, out at rail 0; the other way on the
//   ring 2    2 - 0 - 1 => 4 - 3 - 5 => 2     machines between, so that hops keep to their rail
//
// Pure functions of the graph: the same on all ranks.
#pragma once

#include <span>
#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// The most rings that rings() finds.
inline constexpr int kMostRings = 16;

/// Returns rings over the ranks of a communicator; each names every rank once. `rails`: the rails
/// of the graph (rails.h). `ranks`: by rank of the communicator, its rank in the graph. `machines`:
/// each rank's machine, by any numbers.
///
/// The ranks of a machine stand beside each other, machines in the order of their first ranks, so
/// that each ring crosses each machine's wires once in each direction. Inside a machine the worst
/// hop is as good as possible, then each hop (a shorter distance, then more bandwidth).
///
/// Over several machines there are as many rings as every machine has network devices in use: each
/// leaves a machine by another device. With an odd number of machines one hop of each ring changes
/// the rail. On one machine another ring is added as long as it finds direct NVLinks that no ring
/// has.
std::vector<std::vector<int>> rings(const Graph& graph, std::span<const int> rails,
                                    std::span<const int> ranks, std::span<const int> machines);
/// Returns rings over all ranks of the graph, each on its machine there; as ranks of the graph.
std::vector<std::vector<int>> rings(const Graph& graph);

}  // namespace niccolite::topology
