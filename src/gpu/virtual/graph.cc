#include "gpu/virtual/graph.h"

#include <algorithm>
#include <utility>

namespace niccolite::gpu::virtual_ {

NodeIndex Graph::add(Work work, std::vector<NodeIndex> after) {
  nodes.push_back({.work = std::move(work), .after = std::move(after)});
  return static_cast<NodeIndex>(nodes.size() - 1);
}

std::vector<NodeIndex> Graph::leaves() const { return leaves_without(/*open_nodes=*/false); }
std::vector<NodeIndex> Graph::tips() const { return leaves_without(/*open_nodes=*/true); }

std::vector<NodeIndex> Graph::leaves_without(bool open_nodes) const {
  std::vector<bool> is_leaf(nodes.size(), true);
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    if (open_nodes && nodes[i].is_open) {
      is_leaf[i] = false;
      continue;
    }
    for (NodeIndex index : nodes[i].after) is_leaf[index] = false;
  }
  std::vector<NodeIndex> found;
  for (NodeIndex i = 0; i < nodes.size(); ++i)
    if (is_leaf[i]) found.push_back(i);
  return found;
}

bool Graph::has_all(const std::vector<NodeIndex>& indices) const {
  return std::all_of(indices.begin(), indices.end(), [this](NodeIndex index) {
    return index < nodes.size() && !nodes[index].is_open;
  });
}

Replay::Replay(const std::shared_ptr<const Graph>& graph)
    : first(std::make_shared<Operation>(Nothing{})),
      last(std::make_shared<Operation>(KeepGraph{graph})) {
  operations.reserve(graph->nodes.size());
  for (const Node& node : graph->nodes)
    operations.push_back(std::make_shared<Operation>(node.work));
  for (NodeIndex i = 0; i < graph->nodes.size(); ++i) {
    const std::vector<NodeIndex>& after = graph->nodes[i].after;
    if (after.empty()) Operation::after(operations[i], first);
    for (NodeIndex index : after) Operation::after(operations[i], operations[index]);
  }
  Operation::after(last, first);  // for a graph without nodes
  for (NodeIndex index : graph->leaves()) Operation::after(last, operations[index]);
}

}  // namespace niccolite::gpu::virtual_
