// Capture and graphs.
#include <memory>

#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

// What a graph keeps for us. Until the graph has taken it, the caller keeps the object.
struct Kept {
  void* object;
  void (*release)(void*);
};

void release_kept(void* data) {
  const std::unique_ptr<Kept> kept(static_cast<Kept*>(data));
  if (kept->release != nullptr) kept->release(kept->object);
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

}  // namespace niccolite::gpu::cuda
