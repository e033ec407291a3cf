// Nodes of graphs: made, joined and changed by hand; clones; updates of executables.
#include <algorithm>
#include <utility>

#include "gpu/virtual/runtime.h"

namespace niccolite::gpu::virtual_ {
namespace {

bool has(const std::vector<NodeIndex>& indices, NodeIndex index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

bool have_same_edges(const Node& a, const Node& b) {
  return std::is_permutation(a.after.begin(), a.after.end(), b.after.begin(), b.after.end());
}

}  // namespace

// ---- handles

std::shared_ptr<Graph> Runtime::find_node(void* handle, NodeIndex* index) {
  const std::shared_ptr<NodeReference> reference = nodes_.find(handle);
  std::shared_ptr<Graph> graph = reference == nullptr ? nullptr : reference->graph.lock();
  if (graph != nullptr) *index = reference->index;
  return graph;
}

void* Runtime::handle_of(const std::shared_ptr<Graph>& graph, NodeIndex index) {
  if (index >= graph->handles.size()) graph->handles.resize(index + 1);
  void*& handle = graph->handles[index];
  if (handle == nullptr)
    handle = nodes_.insert(std::make_shared<NodeReference>(NodeReference{graph, index}));
  return handle;
}

Error Runtime::indices_in(const std::shared_ptr<Graph>& graph, const std::vector<void*>& nodes,
                          std::vector<NodeIndex>* out) {
  for (void* node : nodes) {
    NodeIndex index = 0;
    if (find_node(node, &index) != graph || has(*out, index) || graph->nodes[index].is_open)
      return Error::InvalidValue;
    out->push_back(index);
  }
  return Error::None;
}

// Forgets the handles of a graph that will end, and of its child graphs.
void Runtime::forget_handles(Graph& graph) {
  for (void* handle : graph.handles)
    if (handle != nullptr) nodes_.remove(handle);
  graph.handles.clear();
  for (const Node& node : graph.nodes) {
    const auto* child = std::get_if<ChildGraph>(&node.work);
    if (child == nullptr || node.is_removed) continue;
    forget_handles(*child->graph);
    graphs_.remove(child->handle);
  }
}

// ---- work

Error Runtime::check_copy(Copy& copy) const {
  if (is_empty(copy)) return Error::InvalidValue;
  const std::optional<size_t> target_bytes = target_span(copy);
  const std::optional<size_t> source_bytes = source_span(copy);
  if (!target_bytes || !source_bytes) return Error::InvalidValue;
  bool pageable = false;
  TRY_VIRTUAL(memory_.check_range(copy.target, *target_bytes, &pageable, Use::Write, &copy.place));
  return memory_.check_range(copy.source, *source_bytes, &pageable);
}

Error Runtime::check_set(Set& set) const {
  const bool is_element =
      set.element_bytes == 1 || set.element_bytes == 2 || set.element_bytes == 4;
  if (!is_element || is_empty(set)) return Error::InvalidValue;
  const std::optional<size_t> bytes = target_span(set);
  if (!bytes) return Error::InvalidValue;
  const bool is_aligned = reinterpret_cast<uintptr_t>(set.target) % set.element_bytes == 0 &&
                          (set.rows == 1 || set.pitch % set.element_bytes == 0);
  bool pageable = false;
  TRY_VIRTUAL(memory_.check_range(set.target, *bytes, &pageable, Use::Write, &set.place));
  return pageable || !is_aligned ? Error::InvalidValue : Error::None;
}

// Checks the program's description of a node, and finds the objects that it names.
Error Runtime::complete_work(Work& work) {
  if (auto* copy = std::get_if<Copy>(&work)) return check_copy(*copy);
  if (auto* set = std::get_if<Set>(&work)) return check_set(*set);
  if (const auto* host = std::get_if<HostCall>(&work))
    return host->function == nullptr ? Error::InvalidValue : Error::None;
  if (auto* record = std::get_if<RecordEvent>(&work)) {
    record->event = events_.find(record->handle);
    return record->event == nullptr ? Error::InvalidValue : Error::None;
  }
  if (auto* wait = std::get_if<WaitEvent>(&work)) {
    wait->event = events_.find(wait->handle);
    return wait->event == nullptr ? Error::InvalidValue : Error::None;
  }
  if (auto* child = std::get_if<ChildGraph>(&work)) {
    const std::shared_ptr<Graph> graph = graphs_.find(child->handle);
    if (graph == nullptr) return Error::InvalidValue;
    std::lock_guard lock(mutex_);
    if (is_capturing_into(graph)) return Error::IllegalState;
    child->graph = std::make_shared<Graph>(copy_of(graph));
    child->graph->is_child = true;
    child->handle = graphs_.insert(child->graph);
  }
  return Error::None;
}

Error Runtime::add_node(void* handle, const std::vector<void*>& after, Work work, void** node) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::vector<NodeIndex> before;
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(indices_in(graph, after, &before));
  }
  TRY_VIRTUAL(complete_work(work));
  std::lock_guard lock(mutex_);
  const NodeIndex index = graph->add(std::move(work), std::move(before));
  graph->nodes[index].is_loose = true;
  *node = handle_of(graph, index);
  return Error::None;
}

Error Runtime::remove_node(void* handle) {
  Work dropped;  // without the lock: what a kernel keeps alive may end with it
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> graph = find_node(handle, &index);
  if (graph == nullptr || is_capturing_into(graph)) return Error::InvalidValue;
  Node& node = graph->nodes[index];
  if (const auto* child = std::get_if<ChildGraph>(&node.work)) {
    forget_handles(*child->graph);
    graphs_.remove(child->handle);
  }
  dropped = std::exchange(node.work, Nothing{});
  node.after.clear();
  node.is_removed = true;
  for (Node& other : graph->nodes) std::erase(other.after, index);
  nodes_.remove(handle);
  graph->handles[index] = nullptr;
  return Error::None;
}

Error Runtime::node_work(void* handle, Work* out) {
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> graph = find_node(handle, &index);
  if (graph == nullptr) return Error::InvalidValue;
  *out = graph->nodes[index].work;
  return Error::None;
}

Error Runtime::set_node_work(void* handle, Work work) {
  Work before;
  TRY_VIRTUAL(node_work(handle, &before));
  if (kind_of(before) != kind_of(work)) return Error::InvalidValue;
  TRY_VIRTUAL(complete_work(work));
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> graph = find_node(handle, &index);
  if (graph == nullptr) return Error::InvalidValue;  // removed meanwhile
  std::swap(graph->nodes[index].work, work);         // the old work ends outside of the lock
  if (const auto* child = std::get_if<ChildGraph>(&work)) {
    forget_handles(*child->graph);
    graphs_.remove(child->handle);
  }
  return Error::None;
}

// ---- edges

Error Runtime::check_edge(const std::shared_ptr<Graph>& graph, const Edge& edge, NodeIndex* from,
                          NodeIndex* to) {
  const bool are_there =
      find_node(edge.first, from) == graph && find_node(edge.second, to) == graph;
  return are_there && *from != *to ? Error::None : Error::InvalidValue;
}

// All edges or none.
Error Runtime::add_edges(void* handle, const std::vector<Edge>& edges) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::lock_guard lock(mutex_);
  std::vector<std::pair<NodeIndex, NodeIndex>> added;
  for (const Edge& edge : edges) {
    NodeIndex from = 0, to = 0;
    TRY_VIRTUAL(check_edge(graph, edge, &from, &to));
    if (has(graph->nodes[to].after, from) || graph->nodes[from].is_open) return Error::InvalidValue;
    if (std::find(added.begin(), added.end(), std::pair(from, to)) != added.end())
      return Error::InvalidValue;
    added.emplace_back(from, to);
  }
  for (const auto& [from, to] : added) graph->nodes[to].after.push_back(from);
  return Error::None;
}

Error Runtime::remove_edges(void* handle, const std::vector<Edge>& edges) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::lock_guard lock(mutex_);
  std::vector<std::pair<NodeIndex, NodeIndex>> removed;
  for (const Edge& edge : edges) {
    NodeIndex from = 0, to = 0;
    TRY_VIRTUAL(check_edge(graph, edge, &from, &to));
    if (!has(graph->nodes[to].after, from)) return Error::InvalidValue;
    removed.emplace_back(from, to);
  }
  for (const auto& [from, to] : removed) std::erase(graph->nodes[to].after, from);
  return Error::None;
}

Error Runtime::graph_nodes(void* handle, bool only_roots, std::vector<void*>* out) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::lock_guard lock(mutex_);
  for (NodeIndex i = 0; i < graph->nodes.size(); ++i) {
    const Node& node = graph->nodes[i];
    if (!node.is_removed && (!only_roots || node.after.empty()))
      out->push_back(handle_of(graph, i));
  }
  return Error::None;
}

Error Runtime::graph_edges(void* handle, std::vector<Edge>* out) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::lock_guard lock(mutex_);
  for (NodeIndex to = 0; to < graph->nodes.size(); ++to)
    for (NodeIndex from : graph->nodes[to].after)
      out->emplace_back(handle_of(graph, from), handle_of(graph, to));
  return Error::None;
}

Error Runtime::node_neighbours(void* handle, bool after_it, std::vector<void*>* out) {
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> graph = find_node(handle, &index);
  if (graph == nullptr) return Error::InvalidValue;
  if (!after_it) {
    for (NodeIndex before : graph->nodes[index].after) out->push_back(handle_of(graph, before));
    return Error::None;
  }
  for (NodeIndex i = 0; i < graph->nodes.size(); ++i)
    if (has(graph->nodes[i].after, index)) out->push_back(handle_of(graph, i));
  return Error::None;
}

// ---- clones

// The nodes have the same indices; the graphs that are nodes are copied, too.
Graph Runtime::copy_of(const std::shared_ptr<Graph>& graph) {
  Graph copy;
  copy.nodes = graph->nodes;
  copy.kept = graph->kept;
  copy.cloned_from = graph;
  for (Node& node : copy.nodes) {
    node.is_loose = true;
    auto* child = std::get_if<ChildGraph>(&node.work);
    if (child == nullptr) continue;
    child->graph = std::make_shared<Graph>(copy_of(child->graph));
    child->graph->is_child = true;
    child->handle = graphs_.insert(child->graph);
  }
  return copy;
}

Error Runtime::clone_graph(void* handle, void** out) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidValue;
  std::lock_guard lock(mutex_);
  if (is_capturing_into(graph)) return Error::IllegalState;
  *out = graphs_.insert(std::make_shared<Graph>(copy_of(graph)));
  return Error::None;
}

Error Runtime::find_in_clone(void* node, void* clone, void** out) {
  const std::shared_ptr<Graph> graph = graphs_.find(clone);
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> original = find_node(node, &index);
  if (graph == nullptr || original == nullptr || graph->cloned_from.lock() != original ||
      index >= graph->nodes.size() || graph->nodes[index].is_removed)
    return Error::InvalidValue;
  *out = handle_of(graph, index);
  return Error::None;
}

// ---- updates of executables

Error Runtime::update_executable(void* handle, void* graph_handle, UpdateInfo* info) {
  *info = {UpdateResult::Error, nullptr};
  const std::shared_ptr<Executable> executable = executables_.find(handle);
  const std::shared_ptr<Graph> graph = graphs_.find(graph_handle);
  if (executable == nullptr || graph == nullptr) return Error::InvalidResourceHandle;
  std::shared_ptr<const Graph> replaced;  // ends without the lock
  std::lock_guard lock(mutex_);
  if (is_capturing_into(graph)) return Error::IllegalState;
  std::vector<NodeIndex> flat_of;
  Graph flat = graph->flatten(&flat_of);
  const std::vector<Node>& before = executable->graph->nodes;
  info->result = UpdateResult::TopologyChanged;
  if (flat.nodes.size() != before.size()) return Error::GraphExecUpdateFailure;
  for (NodeIndex i = 0; i < before.size(); ++i)
    if (!have_same_edges(before[i], flat.nodes[i])) return Error::GraphExecUpdateFailure;
  for (NodeIndex i = 0; i < graph->nodes.size(); ++i) {
    if (graph->nodes[i].is_removed) continue;
    const NodeIndex there = flat_of[i];
    if (kind_of(before[there].work) == kind_of(flat.nodes[there].work)) continue;
    *info = {UpdateResult::TypeChanged, handle_of(graph, i)};
    return Error::GraphExecUpdateFailure;
  }
  for (NodeIndex i = 0; i < before.size(); ++i) {
    if (kind_of(before[i].work) == kind_of(flat.nodes[i].work)) continue;
    info->result = UpdateResult::TypeChanged;  // in a graph that is a node
    return Error::GraphExecUpdateFailure;
  }
  replaced = std::exchange(executable->graph, std::make_shared<const Graph>(std::move(flat)));
  *info = {};
  return Error::None;
}

Error Runtime::set_executable_work(void* handle, void* node, Work work) {
  const std::shared_ptr<Executable> executable = executables_.find(handle);
  if (executable == nullptr) return Error::InvalidResourceHandle;
  if (std::holds_alternative<ChildGraph>(work)) return Error::NotSupported;
  TRY_VIRTUAL(complete_work(work));
  std::shared_ptr<const Graph> replaced;  // ends without the lock
  std::lock_guard lock(mutex_);
  NodeIndex index = 0;
  const std::shared_ptr<Graph> graph = find_node(node, &index);
  if (graph == nullptr || graph != executable->source.lock() ||
      index >= executable->flat_of.size() || kind_of(graph->nodes[index].work) != kind_of(work))
    return Error::InvalidValue;
  // A launch that runs has the old one.
  auto changed = std::make_shared<Graph>(*executable->graph);
  changed->nodes[executable->flat_of[index]].work = std::move(work);
  replaced = std::exchange(executable->graph, std::move(changed));
  return Error::None;
}

}  // namespace niccolite::gpu::virtual_
