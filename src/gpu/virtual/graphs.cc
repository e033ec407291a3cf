// Graphs: from captured work to replays.
#include <algorithm>
#include <utility>

#include "gpu/virtual/runtime.h"
#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {

Error Runtime::create_graph(void** out) {
  *out = graphs_.insert(std::make_shared<Graph>());
  return Error::None;
}

Error Runtime::destroy_graph(void* graph) {
  const std::shared_ptr<Graph> found = graphs_.find(graph);
  if (found == nullptr) return Error::InvalidResourceHandle;
  {
    std::lock_guard lock(mutex_);
    if (found->is_child) return Error::InvalidValue;
    forget_handles(*found);
  }
  graphs_.remove(graph);  // without the lock: it may hold the last reference of an object
  return Error::None;
}

Error Runtime::graph_size(void* handle, size_t* nodes) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  *nodes = static_cast<size_t>(std::count_if(graph->nodes.begin(), graph->nodes.end(),
                                             [](const Node& node) { return !node.is_removed; }));
  return Error::None;
}

Error Runtime::keep_in_graph(void* handle, std::vector<std::shared_ptr<UserObject>> objects) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  for (std::shared_ptr<UserObject>& object : objects) graph->kept.push_back(std::move(object));
  return Error::None;
}

Error Runtime::release_from_graph(void* handle, const UserObject* object, size_t count) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidResourceHandle;
  std::vector<std::shared_ptr<UserObject>> released;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto is_object = [object](const auto& kept) { return kept.get() == object; };
  const auto held = std::count_if(graph->kept.begin(), graph->kept.end(), is_object);
  if (static_cast<size_t>(held) < count) return Error::InvalidValue;
  for (size_t i = 0; i < count; ++i) {
    const auto found = std::find_if(graph->kept.begin(), graph->kept.end(), is_object);
    released.push_back(std::move(*found));
    graph->kept.erase(found);
  }
  return Error::None;
}

Error Runtime::instantiate(void* handle, void** executable) {
  const std::shared_ptr<Graph> graph = graphs_.find(handle);
  if (graph == nullptr) return Error::InvalidResourceHandle;
  auto made = std::make_shared<Executable>();
  {
    std::lock_guard lock(mutex_);
    if (is_capturing_into(graph)) return Error::IllegalState;
    Graph flat = graph->flatten(&made->flat_of);
    if (flat.has_cycle()) return Error::InvalidValue;
    made->graph = std::make_shared<const Graph>(std::move(flat));
    made->source = graph;
  }
  *executable = executables_.insert(std::move(made));
  return Error::None;
}

Error Runtime::destroy_executable(void* executable) {
  return executables_.remove(executable) ? Error::None : Error::InvalidResourceHandle;
}

Error Runtime::check_executable(void* executable) {
  return executables_.find(executable) ? Error::None : Error::InvalidResourceHandle;
}

Error Runtime::launch(void* handle, int device, StreamHandle stream_handle) {
  const std::shared_ptr<Executable> executable = executables_.find(handle);
  const std::shared_ptr<Stream> stream = find_stream(device, stream_handle);
  if (executable == nullptr || stream == nullptr) return Error::InvalidResourceHandle;
  std::shared_ptr<const Graph> graph;
  {
    std::lock_guard lock(mutex_);
    graph = executable->graph;
  }
  Replay replay(graph);  // without the lock: a large graph takes its time
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(refuse_while_capturing(*stream));
    append(*stream, replay.first, replay.last);
    Operation::after(replay.first, executable->last_replay);
    executable->last_replay = replay.last;
    const std::vector<Node>& nodes = graph->nodes;
    // The waits come first: they mean the records before this launch.
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (const auto* wait = std::get_if<WaitEvent>(&nodes[i].work))
        Operation::after(replay.operations[i], wait->event->recorded);
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto* record = std::get_if<RecordEvent>(&nodes[i].work);
      if (record == nullptr) continue;
      record->event->recorded = replay.operations[i];
      record->event->is_captured = false;
    }
  }
  scheduler().submit(std::move(replay.first));
  for (OperationPtr& operation : replay.operations) scheduler().submit(std::move(operation));
  scheduler().submit(std::move(replay.last));
  return Error::None;
}

}  // namespace niccolite::gpu::virtual_
