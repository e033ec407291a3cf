// What algorithms take from the machine graph: an order of ranks for rings, and the network device
// of each rank. Pure functions of the graph: the same on all ranks.
#pragma once

#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// All ranks of the graph in an order in which a ring over them crosses each wire between machines
/// once in each direction: the ranks of a machine stand beside each other, machines in the order of
/// their first ranks. Within a machine neighbors are near: each is the nearest of those that are
/// left (then of the most bandwidth, then the smallest), the first is that of the smallest rank.
std::vector<int> ring_order(const Graph& graph);

/// By rank, from 0 to the largest: the node of the network device that carries its data, -1 for
/// none. Of those that are nearest to its GPU; GPUs that have the same nearest ones share them
/// evenly.
std::vector<int> rails(const Graph& graph);

}  // namespace niccolite::topology
