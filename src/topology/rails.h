// Rails: the network device of each rank. A pure function of the graph: the same on all ranks.
#pragma once

#include <vector>

#include "topology/graph.h"

namespace niccolite::topology {

/// By rank, from 0 to the largest: the node of the network device that carries its data, -1 for
/// none. Of those that are nearest to its GPU; GPUs that have the same nearest ones share them
/// evenly.
std::vector<int> rails(const Graph& graph);

}  // namespace niccolite::topology
