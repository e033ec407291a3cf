// Capture, graphs, and the objects that graphs keep alive.
#include <memory>
#include <mutex>
#include <vector>

#include "vcuda/call.h"

using niccolite::gpu::CaptureState;
using niccolite::gpu::virtual_::CaptureInfo;
using niccolite::gpu::virtual_::CaptureMode;
using niccolite::gpu::virtual_::HandleKind;
using niccolite::gpu::virtual_::HandleTable;
using niccolite::gpu::virtual_::UserObject;
using vcuda::call;
using vcuda::Error;
using vcuda::place_of;
using vcuda::Runtime;

namespace {

// The program's own references to a user object; graphs hold references of their own.
struct References {
  std::mutex mutex;
  std::weak_ptr<UserObject> object;
  std::vector<std::shared_ptr<UserObject>> held;
};
using ReferenceTable = HandleTable<References, HandleKind::UserObject>;
ReferenceTable& references() {
  static ReferenceTable* const table = new ReferenceTable;
  return *table;
}

// Runs when nobody holds the object any more: the handle ends, then the user's destructor is
// called.
struct Destruction {
  void* handle;
  cudaHostFn_t destroy;
  void* object;
};
void destroy_user_object(void* data) {
  const std::unique_ptr<Destruction> destruction(static_cast<Destruction*>(data));
  references().remove(destruction->handle);
  destruction->destroy(destruction->object);
}

// Takes `count` of the program's references.
Error take(References& from, unsigned int count, std::vector<std::shared_ptr<UserObject>>* out) {
  std::lock_guard lock(from.mutex);
  if (count == 0 || count > from.held.size()) return Error::InvalidValue;
  for (; count > 0; --count) {
    out->push_back(std::move(from.held.back()));
    from.held.pop_back();
  }
  return Error::None;
}

cudaStreamCaptureStatus status_of(CaptureState state) {
  switch (state) {
    case CaptureState::None:
      return cudaStreamCaptureStatusNone;
    case CaptureState::Active:
      return cudaStreamCaptureStatusActive;
    case CaptureState::Invalidated:
      return cudaStreamCaptureStatusInvalidated;
  }
  return cudaStreamCaptureStatusNone;
}

/// `count` edges of the only kind that there is: of the calling thread, until it asks again.
const cudaGraphEdgeData* plain_edges(size_t count) {
  thread_local std::vector<cudaGraphEdgeData> edges;
  edges.assign(count, cudaGraphEdgeData{});
  return edges.data();
}

bool is_mode(cudaStreamCaptureMode mode) {
  return static_cast<unsigned int>(mode) <= cudaStreamCaptureModeRelaxed;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Runtime& runtime) {
    if (!is_mode(mode)) return Error::InvalidValue;
    return runtime.begin_capture(place_of(runtime, stream).device, stream,
                                 static_cast<CaptureMode>(mode));
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call([&](Runtime& runtime) {
    if (graph == nullptr) return Error::InvalidValue;
    void* handle = nullptr;
    const Error error = runtime.end_capture(place_of(runtime, stream).device, stream, &handle);
    *graph = static_cast<cudaGraph_t>(handle);
    return error;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  return call([&](Runtime& runtime) {
    if (status == nullptr) return Error::InvalidValue;
    const int device = place_of(runtime, stream).device;
    CaptureInfo info;
    TRY_VIRTUAL(runtime.capture_info(device, stream, &info));
    *status = status_of(info.state);
    if (info.state != CaptureState::Active) return Error::None;
    if (id != nullptr) *id = info.id;
    if (graph != nullptr) *graph = static_cast<cudaGraph_t>(info.graph);
    if (dependencies == nullptr && edges == nullptr && count == nullptr) return Error::None;
    void** nodes = nullptr;
    size_t number = 0;
    TRY_VIRTUAL(runtime.capture_dependencies(device, stream, &nodes, &number));
    if (dependencies != nullptr) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(nodes);
    if (count != nullptr) *count = number;
    if (edges != nullptr) *edges = plain_edges(number);
    return Error::None;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData*, size_t count,
                                                unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (flags > cudaStreamSetCaptureDependencies || (dependencies == nullptr && count > 0))
      return Error::InvalidValue;
    return runtime.change_capture_dependencies(
        place_of(runtime, stream).device, stream,
        std::vector<void*>(dependencies, dependencies + count),
        flags == cudaStreamSetCaptureDependencies);
  });
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData*, size_t count,
                                          cudaStreamCaptureMode mode) {
  return call([&](Runtime& runtime) {
    if (!is_mode(mode) || graph == nullptr || (dependencies == nullptr && count > 0))
      return Error::InvalidValue;
    return runtime.begin_capture_to(place_of(runtime, stream).device, stream,
                                    static_cast<CaptureMode>(mode), graph,
                                    std::vector<void*>(dependencies, dependencies + count));
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call([&](Runtime&) {
    if (mode == nullptr || !is_mode(*mode)) return Error::InvalidValue;
    *mode = static_cast<cudaStreamCaptureMode>(
        Runtime::exchange_capture_mode(static_cast<CaptureMode>(*mode)));
    return Error::None;
  });
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (graph == nullptr || flags != 0) return Error::InvalidValue;
    void* handle = nullptr;
    TRY_VIRTUAL(runtime.create_graph(&handle));
    *graph = static_cast<cudaGraph_t>(handle);
    return Error::None;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Runtime& runtime) { return runtime.destroy_graph(graph); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return call([&](Runtime& runtime) {
    if (executable == nullptr) return Error::InvalidValue;
    if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) return Error::NotSupported;
    void* handle = nullptr;
    TRY_VIRTUAL(runtime.instantiate(graph, &handle));
    *executable = static_cast<cudaGraphExec_t>(handle);
    return Error::None;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

// Executables have nothing to bring to the device.
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
  return call([&](Runtime& runtime) { return runtime.check_executable(executable); });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call([&](Runtime& runtime) {
    return runtime.launch(executable, place_of(runtime, stream).device, stream);
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call([&](Runtime& runtime) { return runtime.destroy_executable(executable); });
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* object, cudaHostFn_t destroy,
                                 unsigned int count, unsigned int flags) {
  return call([&](Runtime&) {
    if (out == nullptr || destroy == nullptr || count == 0 || count > INT32_MAX ||
        flags != cudaUserObjectNoDestructorSync)
      return Error::InvalidValue;
    auto mine = std::make_shared<References>();
    auto destruction = std::make_unique<Destruction>(Destruction{nullptr, destroy, object});
    void* handle = destruction->handle = references().insert(mine);
    auto made = std::make_shared<UserObject>(destruction.release(), &destroy_user_object);
    std::lock_guard lock(mine->mutex);
    mine->object = made;
    mine->held.assign(count, made);
    *out = static_cast<cudaUserObject_t>(handle);
    return Error::None;
  });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned int count) {
  return call([&](Runtime&) {
    const std::shared_ptr<References> mine = references().find(handle);
    if (mine == nullptr || count == 0 || count > INT32_MAX) return Error::InvalidValue;
    const std::shared_ptr<UserObject> object = mine->object.lock();
    if (object == nullptr) return Error::InvalidValue;
    std::lock_guard lock(mine->mutex);
    mine->held.insert(mine->held.end(), count, object);
    return Error::None;
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned int count) {
  return call([&](Runtime&) {
    const std::shared_ptr<References> mine = references().find(handle);
    if (mine == nullptr) return Error::InvalidValue;
    std::vector<std::shared_ptr<UserObject>> released;  // the last one destroys the object, here
    return take(*mine, count, &released);
  });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle,
                                      unsigned int count, unsigned int flags) {
  return call([&](Runtime& runtime) {
    const std::shared_ptr<References> mine = references().find(handle);
    size_t ignored = 0;
    if (mine == nullptr || count == 0 || flags > cudaGraphUserObjectMove)
      return Error::InvalidValue;
    TRY_VIRTUAL(runtime.graph_size(graph, &ignored));
    std::vector<std::shared_ptr<UserObject>> objects;
    if (flags == cudaGraphUserObjectMove) {
      TRY_VIRTUAL(take(*mine, count, &objects));
    } else {
      const std::shared_ptr<UserObject> object = mine->object.lock();
      if (object == nullptr) return Error::InvalidValue;
      objects.assign(count, object);
    }
    return runtime.keep_in_graph(graph, std::move(objects));
  });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t handle,
                                       unsigned int count) {
  return call([&](Runtime& runtime) {
    const std::shared_ptr<References> mine = references().find(handle);
    if (mine == nullptr || count == 0) return Error::InvalidValue;
    const std::shared_ptr<UserObject> object = mine->object.lock();
    return object ? runtime.release_from_graph(graph, object.get(), count) : Error::InvalidValue;
  });
}
