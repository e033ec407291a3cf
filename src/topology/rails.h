// Rails: the network device of each rank. A pure function of the graph: the same on all ranks.
#pragma once

#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// Returns by rank, from 0 to the largest, the node of the network device that carries its data;
/// -1: none. It is one of the devices nearest to the rank's GPU. GPUs with the same nearest devices
/// share them evenly.
std::vector<int> rails(const Graph& graph);

/// Returns the nodes of the network devices nearest to a GPU's node, on its host: those with the
/// best type of path, and of these with the best bandwidth; ascending by device.
std::vector<int> nearest_nets(const Graph& graph, int gpu);

}  // namespace niccolite::topology
