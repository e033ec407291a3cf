#include "topology/rails.h"

#include <algorithm>

namespace niccolite::topology {
namespace {

int rank_at(const Graph& graph, int node) {
  return graph.nodes()[static_cast<size_t>(node)].gpu->rank;
}
int host_at(const Graph& graph, int node) { return graph.nodes()[static_cast<size_t>(node)].host; }

}  // namespace

std::vector<int> nearest_nets(const Graph& graph, int gpu) {
  const auto key = [&](int net) {
    const Path& path = graph.path(gpu, net);
    return std::pair(path.type, -path.bandwidth);
  };
  std::vector<int> nearest;
  for (const int net : graph.nets()) {
    if (host_at(graph, net) != host_at(graph, gpu)) continue;
    if (!nearest.empty() && key(net) > key(nearest[0])) continue;
    if (!nearest.empty() && key(net) < key(nearest[0])) nearest.clear();
    nearest.push_back(net);
  }
  return nearest;
}

std::vector<int> rails(const Graph& graph) {
  std::vector<int> rails;
  std::vector<std::pair<std::vector<int>, size_t>> shared;  // nearest ones, and their users so far
  for (const int gpu : graph.gpus()) {
    const int rank = rank_at(graph, gpu);
    if (rank < 0) continue;
    rails.resize(static_cast<size_t>(rank) + 1, -1);
    const std::vector<int> nearest = nearest_nets(graph, gpu);
    if (nearest.empty()) continue;
    auto found = std::ranges::find(shared, nearest, [](const auto& entry) { return entry.first; });
    if (found == shared.end()) found = shared.insert(shared.end(), {nearest, 0});
    rails[static_cast<size_t>(rank)] = nearest[found->second++ % nearest.size()];
  }
  return rails;
}

}  // namespace niccolite::topology
