// Capture and graphs.
#include <algorithm>
#include <memory>

#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

// An object of ours that a graph keeps. Until the graph has taken it, the caller keeps the object.
struct Kept {
  void* object;
  void (*release)(void*);
};

void release_kept(void* data) {
  const std::unique_ptr<Kept> kept(static_cast<Kept*>(data));
  if (kept->release != nullptr) kept->release(kept->object);
}

// Nodes as the driver takes them: our GraphNode is its CUgraphNode.
CuGraphNode as_node(GraphNode node) { return static_cast<CuGraphNode>(node); }
std::vector<CuGraphNode> nodes_of(const CapturePoint& point) {
  std::vector<CuGraphNode> nodes;
  for (GraphNode node : point.nodes) nodes.push_back(as_node(node));
  return nodes;
}

}  // namespace

Status CudaMachine::begin_capture(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuStreamBeginCapture(as_stream(stream), CuCaptureMode::ThreadLocal),
                       "cuStreamBeginCapture(device {})", device);
}

Result<Graph> CudaMachine::end_capture(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  CuGraph graph = nullptr;
  TRY(driver_.check(driver_.cuStreamEndCapture(as_stream(stream), &graph),
                    "cuStreamEndCapture(device {})", device));
  // A thread with several devices may still be capturing on the others.
  const ScopedRelaxedCapture relaxed(driver_);
  CuGraphExec executable = nullptr;
  Status instantiated = driver_.check(driver_.cuGraphInstantiateWithFlags(&executable, graph, 0),
                                      "cuGraphInstantiateWithFlags(device {})", device);
  Status destroyed = driver_.check(driver_.cuGraphDestroy(graph), "cuGraphDestroy");
  TRY(std::move(instantiated));
  Graph result(this, executable);
  TRY(std::move(destroyed));
  return result;
}

Status CudaMachine::launch_graph(const Graph& graph, int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(
      driver_.cuGraphLaunch(static_cast<CuGraphExec>(graph.handle()), as_stream(stream)),
      "cuGraphLaunch(device {})", device);
}

Status CudaMachine::release_graph(void* handle) {
  const ScopedRelaxedCapture relaxed(driver_);
  const ScopedContext scoped = TRY(enter_any());
  return driver_.check(driver_.cuGraphExecDestroy(static_cast<CuGraphExec>(handle)),
                       "cuGraphExecDestroy");
}

Status CudaMachine::keep_in_graph(int device, StreamHandle stream, void* object,
                                  void (*release)(void*)) {
  const ScopedContext scoped = TRY(enter(device));
  CuCaptureStatus status = CuCaptureStatus::None;
  CuGraph graph = nullptr;
  TRY(driver_.check(
      driver_.cuStreamGetCaptureInfo(as_stream(stream), &status, nullptr, &graph, nullptr, nullptr),
      "cuStreamGetCaptureInfo(device {})", device));
  if (status != CuCaptureStatus::Active) {
    return Status::invalid_usage("an object can be kept in a graph only while it is captured");
  }
  auto kept = std::make_unique<Kept>(Kept{object, /*release=*/nullptr});
  CuUserObject user_object = nullptr;
  TRY(driver_.check(driver_.cuUserObjectCreate(&user_object, kept.get(), release_kept, 1,
                                               kCuUserObjectNoDestructorSync),
                    "cuUserObjectCreate(device {})", device));
  Kept* owned = kept.release();  // release_kept() deletes it from here on
  Status retained =
      driver_.check(driver_.cuGraphRetainUserObject(graph, user_object, 1, kCuGraphUserObjectMove),
                    "cuGraphRetainUserObject(device {})", device);
  if (!retained.is_ok()) {
    driver_.cuUserObjectRelease(user_object, 1);
    return retained;
  }
  // The stream is still capturing, so that the graph, and with it `owned`, lives.
  owned->release = release;
  return {};
}

// The functions below have, by Driver's choice of version, the signatures without edge data of CUDA
// 12.0 on every driver; the edges here are plain ones.

Result<CapturePoint> CudaMachine::capture_point(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  CuCaptureStatus status = CuCaptureStatus::None;
  CuGraph graph = nullptr;
  const CuGraphNode* nodes = nullptr;
  size_t count = 0;
  TRY(driver_.check(
      driver_.cuStreamGetCaptureInfo(as_stream(stream), &status, nullptr, &graph, &nodes, &count),
      "cuStreamGetCaptureInfo(device {})", device));
  if (status != CuCaptureStatus::Active)
    return Status::invalid_usage("stream {} is not capturing", stream);
  CapturePoint point;
  point.graph = graph;
  point.nodes.assign(nodes, nodes + count);
  return point;
}

Status CudaMachine::capture_after(int device, StreamHandle stream, const CapturePoint& point) {
  const ScopedContext scoped = TRY(enter(device));
  std::vector<CuGraphNode> nodes = nodes_of(point);
  const CuResult result = driver_.cuStreamUpdateCaptureDependencies(
      as_stream(stream), nodes.data(), nodes.size(), kCuStreamAddCaptureDependencies);
  if (result == kCuIllegalState) return Status::invalid_usage("stream {} is not capturing", stream);
  return driver_.check(result, "cuStreamUpdateCaptureDependencies(device {})", device);
}

Status CudaMachine::wait_event_at_launch(int device, StreamHandle stream, const Event& event) {
  const ScopedContext scoped = TRY(enter(device));
  const CuResult result =
      driver_.cuStreamWaitEvent(as_stream(stream), as_event(event), kCuEventWaitExternal);
  if (result == kCuIllegalState) return Status::invalid_usage("stream {} is not capturing", stream);
  return driver_.check(result, "cuStreamWaitEvent(external, device {})", device);
}

Result<GraphNode> CudaMachine::record_event_at_launch(int device, const CapturePoint& point,
                                                      const Event& event) {
  const ScopedContext scoped = TRY(enter(device));
  const std::vector<CuGraphNode> nodes = nodes_of(point);
  CuGraphNode record = nullptr;
  TRY(driver_.check(driver_.cuGraphAddEventRecordNode(&record, static_cast<CuGraph>(point.graph),
                                                      nodes.data(), nodes.size(), as_event(event)),
                    "cuGraphAddEventRecordNode(device {})", device));
  return static_cast<GraphNode>(record);
}

Status CudaMachine::move_record(int device, GraphNode record, const CapturePoint& from,
                                const CapturePoint& to) {
  const ScopedContext scoped = TRY(enter(device));
  const std::vector<CuGraphNode> old_nodes = nodes_of(from);
  const std::vector<CuGraphNode> new_nodes = nodes_of(to);
  const std::vector<CuGraphNode> records(std::max(old_nodes.size(), new_nodes.size()),
                                         as_node(record));
  auto* const graph = static_cast<CuGraph>(to.graph);
  TRY(driver_.check(
      driver_.cuGraphAddDependencies(graph, new_nodes.data(), records.data(), new_nodes.size()),
      "cuGraphAddDependencies(device {})", device));
  return driver_.check(
      driver_.cuGraphRemoveDependencies(graph, old_nodes.data(), records.data(), old_nodes.size()),
      "cuGraphRemoveDependencies(device {})", device);
}

}  // namespace niccolite::gpu::cuda
