// Capture: work queued to a capturing stream becomes nodes of a graph. Other streams join by
// waiting for an event that was recorded in the capture, and must be joined to the origin again
// before it ends.
#include <algorithm>
#include <utility>

#include "gpu/virtual/runtime.h"

namespace niccolite::gpu::virtual_ {
namespace {

thread_local CaptureMode thread_mode = CaptureMode::Global;

void add_all(std::vector<NodeIndex>& to, const std::vector<NodeIndex>& from) {
  for (NodeIndex index : from)
    if (std::find(to.begin(), to.end(), index) == to.end()) to.push_back(index);
}

}  // namespace

CaptureMode Runtime::exchange_capture_mode(CaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

Error Runtime::begin_capture(int device, StreamHandle handle, CaptureMode mode) {
  return begin_capture_to(device, handle, mode, nullptr, {});
}

// Null: to a new graph.
Error Runtime::begin_capture_to(int device, StreamHandle handle, CaptureMode mode, void* graph,
                                const std::vector<void*>& nodes) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  if (stream->is_legacy) return Error::StreamCaptureUnsupported;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph = graph == nullptr ? std::make_shared<Graph>() : graphs_.find(graph);
  if (capture->graph == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture || is_capturing_into(capture->graph)) return Error::IllegalState;
  std::vector<NodeIndex> tips;
  TRY_VIRTUAL(indices_in(capture->graph, nodes, &tips));
  // Nodes that the graph already has need not be joined.
  for (Node& node : capture->graph->nodes) node.is_loose = true;
  capture->id = next_capture_id_++;
  capture->owns_graph = graph == nullptr;
  capture->graph_handle = capture->owns_graph ? graphs_.insert(capture->graph) : graph;
  captures_.push_back(capture);
  join_capture(stream, capture);
  stream->capture_tips = std::move(tips);
  return Error::None;
}

void Runtime::join_capture(const std::shared_ptr<Stream>& stream,
                           const std::shared_ptr<Capture>& capture) {
  stream->capture = capture;
  stream->capture_tips.clear();
  capture->streams.push_back(stream);
}

Error Runtime::check_capture(Stream& stream) {
  return stream.capture->is_invalidated ? Error::StreamCaptureInvalidated : Error::None;
}

void Runtime::capture_node(Stream& stream, Work work) {
  const NodeIndex node =
      stream.capture->graph->add(std::move(work), std::exchange(stream.capture_tips, {}));
  stream.capture_tips.push_back(node);
}

// `stream` or `event` is capturing.
Error Runtime::capture_wait(const std::shared_ptr<Stream>& stream, Event& event) {
  if (!event.is_captured) {
    // Work outside of the capture cannot become an edge of the graph; an event without a record is
    // no work.
    if (event.recorded == nullptr) return Error::None;
    stream->capture->is_invalidated = true;
    return Error::StreamCaptureIsolation;
  }
  const std::shared_ptr<Capture> capture = event.capture.lock();
  const bool active =
      capture && std::find(captures_.begin(), captures_.end(), capture) != captures_.end();
  if (!active) return Error::CapturedEvent;
  if (capture->is_invalidated) return Error::StreamCaptureInvalidated;
  if (stream->is_legacy) {
    capture->is_invalidated = true;
    return Error::StreamCaptureImplicit;
  }
  if (stream->capture == nullptr) join_capture(stream, capture);
  if (stream->capture != capture) {
    capture->is_invalidated = stream->capture->is_invalidated = true;
    return Error::StreamCaptureMerge;
  }
  add_all(stream->capture_tips, event.captured_after);
  return Error::None;
}

// Ends the capture for all its streams. The caller drops the result when it no longer holds the
// lock.
std::shared_ptr<Capture> Runtime::leave_capture(Stream& stream) {
  std::shared_ptr<Capture> capture = stream.capture;
  std::erase(captures_, capture);
  for (const std::weak_ptr<Stream>& weak : capture->streams) {
    const std::shared_ptr<Stream> member = weak.lock();
    if (member == nullptr || member->capture != capture) continue;
    member->capture.reset();
    member->capture_tips.clear();
  }
  return capture;
}

Error Runtime::end_capture(int device, StreamHandle handle, void** graph) {
  *graph = nullptr;
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::shared_ptr<Capture> capture;
  std::vector<NodeIndex> joined;
  {
    std::lock_guard lock(mutex_);
    if (stream->capture == nullptr) return Error::IllegalState;
    if (stream->capture->origin != stream.get()) {
      stream->capture->is_invalidated = true;
      return Error::StreamCaptureUnmatched;
    }
    if (stream->capture->mode != CaptureMode::Relaxed &&
        stream->capture->thread != std::this_thread::get_id())
      return Error::StreamCaptureWrongThread;
    joined = stream->capture_tips;
    capture = leave_capture(*stream);
  }
  Error error = capture->is_invalidated ? Error::StreamCaptureInvalidated : Error::None;
  if (error == Error::None) {
    for (NodeIndex leaf : capture->graph->tips())
      if (std::find(joined.begin(), joined.end(), leaf) == joined.end())
        error = Error::StreamCaptureUnjoined;
  }
  if (error != Error::None) {
    if (capture->owns_graph) (void)destroy_graph(capture->graph_handle);
    return error;
  }
  std::lock_guard lock(mutex_);
  for (Node& node : capture->graph->nodes) node.is_open = false;
  *graph = capture->graph_handle;
  return Error::None;
}

Error Runtime::capture_info(int device, StreamHandle handle, CaptureInfo* out) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  *out = {};
  if (stream->capture == nullptr) {
    // To ask about the legacy stream while one that it waits for is capturing has no right answer.
    return captures_.empty() ? Error::None : check_usable(*stream);
  }
  out->state = stream->capture->is_invalidated ? CaptureState::Invalidated : CaptureState::Active;
  out->id = stream->capture->id;
  out->graph = stream->capture->graph_handle;
  return Error::None;
}

Error Runtime::capture_point(int device, StreamHandle handle, void** graph,
                             std::vector<NodeIndex>* nodes) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture == nullptr) return Error::IllegalState;
  TRY_VIRTUAL(check_capture(*stream));
  *graph = stream->capture->graph_handle;
  *nodes = stream->capture_tips;
  return Error::None;
}

Error Runtime::capture_after(int device, StreamHandle handle, void* graph,
                             const std::vector<NodeIndex>& nodes) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture == nullptr) return Error::IllegalState;
  TRY_VIRTUAL(check_capture(*stream));
  const bool fits =
      stream->capture->graph_handle == graph && stream->capture->graph->has_all(nodes);
  if (!fits) return Error::InvalidValue;
  add_all(stream->capture_tips, nodes);
  return Error::None;
}

Error Runtime::capture_dependencies(int device, StreamHandle handle, void*** nodes, size_t* count) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture == nullptr) return Error::IllegalState;
  stream->told_tips.clear();
  for (NodeIndex tip : stream->capture_tips)
    stream->told_tips.push_back(handle_of(stream->capture->graph, tip));
  *nodes = stream->told_tips.data();
  *count = stream->told_tips.size();
  return Error::None;
}

Error Runtime::change_capture_dependencies(int device, StreamHandle handle,
                                           const std::vector<void*>& nodes, bool replace) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture == nullptr) return Error::IllegalState;
  TRY_VIRTUAL(check_capture(*stream));
  Graph& graph = *stream->capture->graph;
  std::vector<NodeIndex> indices;
  TRY_VIRTUAL(indices_in(stream->capture->graph, nodes, &indices));
  if (replace) {
    // The program has cut them off, so that nobody will join them.
    for (NodeIndex tip : stream->capture_tips) graph.nodes[tip].is_loose = true;
    stream->capture_tips.clear();
  }
  add_all(stream->capture_tips, indices);
  return Error::None;
}

bool Runtime::is_capturing_into(const std::shared_ptr<Graph>& graph) {
  return std::any_of(captures_.begin(), captures_.end(),
                     [&graph](const auto& capture) { return capture->graph == graph; });
}

Graph* Runtime::graph_in_capture(void* handle) {
  for (const std::shared_ptr<Capture>& capture : captures_)
    if (capture->graph_handle == handle) return capture->graph.get();
  return nullptr;
}

Error Runtime::add_record_node(void* handle, const std::vector<NodeIndex>& after, void* event,
                               NodeIndex* out) {
  std::shared_ptr<Event> found = events_.find(event);
  if (found == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  Graph* graph = graph_in_capture(handle);
  if (graph == nullptr) return Error::IllegalState;
  if (!graph->has_all(after)) return Error::InvalidValue;
  *out = graph->add(RecordEvent{std::move(found)}, after);
  graph->nodes[*out].is_open = true;
  return Error::None;
}

Error Runtime::move_record_node(void* handle, NodeIndex record, const std::vector<NodeIndex>& from,
                                const std::vector<NodeIndex>& to) {
  std::lock_guard lock(mutex_);
  Graph* graph = graph_in_capture(handle);
  if (graph == nullptr) return Error::IllegalState;
  const bool is_record = record < graph->nodes.size() && graph->nodes[record].is_open;
  if (!is_record || !graph->has_all(to)) return Error::InvalidValue;
  std::vector<NodeIndex>& after = graph->nodes[record].after;
  const auto is_there = [&after](NodeIndex node) {
    return std::find(after.begin(), after.end(), node) != after.end();
  };
  if (!std::all_of(from.begin(), from.end(), is_there)) return Error::InvalidValue;
  if (std::any_of(to.begin(), to.end(), is_there)) return Error::InvalidValue;
  std::erase_if(after, [&from](NodeIndex node) {
    return std::find(from.begin(), from.end(), node) != from.end();
  });
  after.insert(after.end(), to.begin(), to.end());
  return Error::None;
}

Error Runtime::keep_in_capture(int device, StreamHandle handle,
                               std::shared_ptr<UserObject> object) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture == nullptr) return Error::IllegalState;
  TRY_VIRTUAL(check_capture(*stream));
  stream->capture->graph->kept.push_back(std::move(object));
  return Error::None;
}

Error Runtime::check_unsafe_call() {
  if (thread_mode == CaptureMode::Relaxed) return Error::None;
  std::lock_guard lock(mutex_);
  Error error = Error::None;
  for (const std::shared_ptr<Capture>& capture : captures_) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        own ? capture->mode != CaptureMode::Relaxed
            : capture->mode == CaptureMode::Global && thread_mode == CaptureMode::Global;
    if (!forbids) continue;
    capture->is_invalidated = true;
    error = Error::StreamCaptureUnsupported;
  }
  return error;
}

}  // namespace niccolite::gpu::virtual_
