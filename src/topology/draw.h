// The machine graph for people: as text, with the matrix of distances that `nvidia-smi topo -m`
// has, and as a picture.
#pragma once

#include <string>

#include "topology/graph.h"

namespace niccolite::topology {

/// The tree, the distances between GPUs and network devices, the rings and the rails.
std::string draw_text(const Graph& graph);

/// Self-contained SVG: a box per machine, in it NUMA nodes, switches, GPUs and network devices as
/// they lie in each other; NVLinks as lines.
std::string draw_svg(const Graph& graph);

}  // namespace niccolite::topology
