// The machine graph for people: as text, with the matrix of distances that `nvidia-smi topo -m`
// has, and as a picture.
#pragma once

#include <string>

#include "topology/graph.h"

namespace niccolite::topology {

/// The tree, the distances between GPUs and network devices, the rings and the rails.
std::string draw_text(const Graph& graph);

/// Returns a self-contained SVG: a box per machine with its NUMA nodes, switches, GPUs and network
/// devices, NVLinks as lines, GPUs on a slow bus in red; below them the rings and the distances,
/// with the slowest hops marked.
std::string draw_svg(const Graph& graph);

}  // namespace niccolite::topology
