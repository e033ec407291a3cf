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
    const Node& node = nodes[i];
    if (node.is_removed || (open_nodes && (node.is_open || node.is_loose))) is_leaf[i] = false;
    if (node.is_removed || (open_nodes && node.is_open)) continue;
    for (NodeIndex index : nodes[i].after) is_leaf[index] = false;
  }
  std::vector<NodeIndex> found;
  for (NodeIndex i = 0; i < nodes.size(); ++i)
    if (is_leaf[i]) found.push_back(i);
  return found;
}

bool Graph::has_all(const std::vector<NodeIndex>& indices) const {
  return std::all_of(indices.begin(), indices.end(), [this](NodeIndex index) {
    return index < nodes.size() && !nodes[index].is_open && !nodes[index].is_removed;
  });
}

Graph Graph::flatten(std::vector<NodeIndex>* flat_of) const {
  Graph flat;
  flatten_into(flat, {}, flat_of, nullptr);
  return flat;
}

void Graph::flatten_into(Graph& flat, const std::vector<NodeIndex>& after,
                         std::vector<NodeIndex>* flat_of,
                         std::vector<NodeIndex>* flat_leaves) const {
  flat.kept.insert(flat.kept.end(), kept.begin(), kept.end());
  // A node that is a graph becomes two points in the order, with the nodes of the graph between
  // them.
  std::vector<NodeIndex> begins(nodes.size()), ends(nodes.size());
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    if (nodes[i].is_removed) continue;
    const auto* child = std::get_if<ChildGraph>(&nodes[i].work);
    begins[i] = ends[i] = flat.add(child == nullptr ? nodes[i].work : Work(Nothing{}), {});
    if (child == nullptr) continue;
    std::vector<NodeIndex> inner{begins[i]};
    child->graph->flatten_into(flat, {begins[i]}, nullptr, &inner);
    ends[i] = flat.add(Nothing{}, std::move(inner));
  }
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    if (nodes[i].is_removed) continue;
    std::vector<NodeIndex>& edges = flat.nodes[begins[i]].after;
    for (NodeIndex before : nodes[i].after) edges.push_back(ends[before]);
    if (nodes[i].after.empty()) edges = after;
  }
  if (flat_leaves != nullptr)
    for (NodeIndex leaf : leaves()) flat_leaves->push_back(ends[leaf]);
  if (flat_of != nullptr) *flat_of = std::move(begins);
}

bool Graph::has_cycle() const {
  std::vector<size_t> missing(nodes.size());
  std::vector<std::vector<NodeIndex>> next(nodes.size());
  std::vector<NodeIndex> ready;
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    missing[i] = nodes[i].after.size();
    for (NodeIndex before : nodes[i].after) next[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  size_t passed = 0;
  for (; !ready.empty(); ++passed) {
    const NodeIndex node = ready.back();
    ready.pop_back();
    for (NodeIndex follower : next[node])
      if (--missing[follower] == 0) ready.push_back(follower);
  }
  return passed < nodes.size();
}

NodeKind kind_of(const Work& work) {
  struct Kinds {
    NodeKind operator()(const KernelLaunch&) const { return NodeKind::Kernel; }
    NodeKind operator()(const Copy&) const { return NodeKind::Copy; }
    NodeKind operator()(const Set&) const { return NodeKind::Set; }
    NodeKind operator()(const HostCall&) const { return NodeKind::Host; }
    NodeKind operator()(const ChildGraph&) const { return NodeKind::Child; }
    NodeKind operator()(const WaitEvent&) const { return NodeKind::WaitEvent; }
    NodeKind operator()(const RecordEvent&) const { return NodeKind::RecordEvent; }
    NodeKind operator()(const WaitValue&) const { return NodeKind::Words; }
    NodeKind operator()(const WriteValue&) const { return NodeKind::Words; }
    NodeKind operator()(const Nothing&) const { return NodeKind::Empty; }
    NodeKind operator()(const Notify&) const { return NodeKind::Empty; }
    NodeKind operator()(const KeepGraph&) const { return NodeKind::Empty; }
  };
  return std::visit(Kinds{}, work);
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

// One by one: a chain in which each operation destroys the next needs a stack as deep as the graph.
Replay::~Replay() {
  if (first != nullptr) first->abandon();
  for (const OperationPtr& operation : operations)
    if (operation != nullptr) operation->abandon();
}

}  // namespace niccolite::gpu::virtual_
