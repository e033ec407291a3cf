#include "gpu/virtual/graph.h"

#include <utility>

namespace niccolite::gpu::virtual_ {

NodeIndex Graph::add(Work work, std::vector<NodeIndex> after) {
  nodes.push_back({std::move(work), std::move(after)});
  return static_cast<NodeIndex>(nodes.size() - 1);
}

std::vector<NodeIndex> Graph::add_copy_of(const Graph& child, const std::vector<NodeIndex>& after) {
  const auto base = static_cast<NodeIndex>(nodes.size());
  for (const Node& node : child.nodes) {
    std::vector<NodeIndex> moved = node.after;
    for (NodeIndex& index : moved) index += base;
    add(node.work, node.after.empty() ? after : std::move(moved));
  }
  kept.insert(kept.end(), child.kept.begin(), child.kept.end());
  std::vector<NodeIndex> tips = child.leaves();
  for (NodeIndex& index : tips) index += base;
  return tips.empty() ? after : tips;
}

std::vector<NodeIndex> Graph::leaves() const {
  std::vector<bool> has_successor(nodes.size(), false);
  for (const Node& node : nodes)
    for (NodeIndex index : node.after) has_successor[index] = true;
  std::vector<NodeIndex> found;
  for (NodeIndex i = 0; i < nodes.size(); ++i)
    if (!has_successor[i]) found.push_back(i);
  return found;
}

Replay::Replay(const std::shared_ptr<const Graph>& graph)
    : first(std::make_shared<Operation>(Nothing{})),
      last(std::make_shared<Operation>(KeepGraph{graph})) {
  operations.reserve(graph->nodes.size());
  for (const Node& node : graph->nodes) {
    OperationPtr operation = std::make_shared<Operation>(node.work);
    if (node.after.empty()) Operation::after(operation, first);
    for (NodeIndex index : node.after) Operation::after(operation, operations[index]);
    operations.push_back(std::move(operation));
  }
  Operation::after(last, first);  // for a graph without nodes
  for (NodeIndex index : graph->leaves()) Operation::after(last, operations[index]);
}

}  // namespace niccolite::gpu::virtual_
