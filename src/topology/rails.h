// Rails: the network device of each rank. A pure function of the graph: the same on all ranks.
#pragma once

#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// Returns by rank, from 0 to the largest, the node of the network device that carries its data;
/// -1: none. It is one of the devices nearest to the rank's GPU. GPUs with the same nearest devices
/// share them evenly.
std::vector<int> rails(const Graph& graph);

}  // namespace niccolite::topology
