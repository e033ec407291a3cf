// The part of a topology's picture that shows paths: rings, distances, and the slow ones. For
// draw_svg.cc.
#pragma once

#include <string>

#include "topology/graph.h"

namespace niccolite::topology {

/// A piece of a picture, whose left upper corner is at (0, 0).
struct Drawing {
  std::string svg{};
  int width = 0, height = 0;
};

/// Each ring as a line of ranks; a hop has the colour of its distance, and the slowest hops of all
/// rings are thick. Empty without ranks.
Drawing draw_rings(const Graph& graph);

/// The matrix of distances between GPUs and network devices, and the meaning of its colours. Of
/// more than 64 devices it shows the first ones and says so.
Drawing draw_distances(const Graph& graph);

/// "slowest hop of the rings: rank 3 to rank 4, SYS, 10 GB/s". Empty without rings.
std::string describe_slowest_hop(const Graph& graph);

}  // namespace niccolite::topology
