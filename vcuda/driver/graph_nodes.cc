// Nodes of graphs: the driver's types are turned into the runtime's, whose functions do the work.
#include "vcuda/driver/context.h"

namespace {

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)

constexpr int kHost = 1, kDevice = 2, kArray = 3;  // CU_MEMORYTYPE_*; 4 is any address

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult volume_of(const CUDA_MEMCPY3D* from, cudaMemcpy3DParms& out) {
  if (from == nullptr || from->srcMemoryType == kArray || from->dstMemoryType == kArray)
    return kInvalidValue;
  out = {};
  out.srcPtr.ptr =
      from->srcMemoryType == kHost ? const_cast<void*>(from->srcHost) : as_pointer(from->srcDevice);
  out.srcPtr.pitch = from->srcPitch;
  out.srcPtr.ysize = from->srcHeight;
  out.srcPos = {from->srcXInBytes, from->srcY, from->srcZ};
  out.dstPtr.ptr = from->dstMemoryType == kHost ? from->dstHost : as_pointer(from->dstDevice);
  out.dstPtr.pitch = from->dstPitch;
  out.dstPtr.ysize = from->dstHeight;
  out.dstPos = {from->dstXInBytes, from->dstY, from->dstZ};
  out.extent = {from->WidthInBytes, from->Height, from->Depth};
  out.kind = cudaMemcpyDefault;
  return kSuccess;
}

int memory_type_of(const void* pointer) {
  cudaPointerAttributes attributes;
  const bool is_known = cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess;
  return is_known && (attributes.type == cudaMemoryTypeDevice ||
                      attributes.type == cudaMemoryTypeManaged)
             ? kDevice
             : kHost;
}

CUDA_MEMCPY3D copy_of(const cudaMemcpy3DParms& from) {
  CUDA_MEMCPY3D out{};
  out.srcMemoryType = memory_type_of(from.srcPtr.ptr);
  out.srcHost = out.srcMemoryType == kHost ? from.srcPtr.ptr : nullptr;
  out.srcDevice = out.srcMemoryType == kHost ? 0 : reinterpret_cast<CUdeviceptr>(from.srcPtr.ptr);
  out.srcPitch = from.srcPtr.pitch;
  out.srcHeight = from.srcPtr.ysize;
  out.dstMemoryType = memory_type_of(from.dstPtr.ptr);
  out.dstHost = out.dstMemoryType == kHost ? from.dstPtr.ptr : nullptr;
  out.dstDevice = out.dstMemoryType == kHost ? 0 : reinterpret_cast<CUdeviceptr>(from.dstPtr.ptr);
  out.dstPitch = from.dstPtr.pitch;
  out.dstHeight = from.dstPtr.ysize;
  out.WidthInBytes = from.extent.width;
  out.Height = from.extent.height;
  out.Depth = from.extent.depth;
  return out;
}

cudaMemsetParams set_of(const CUDA_MEMSET_NODE_PARAMS& from) {
  return {as_pointer(from.dst), from.pitch, from.value, from.elementSize, from.width, from.height};
}

CUresult parameters_of(const CUgraphNodeParams* from, cudaGraphNodeParams& out) {
  if (from == nullptr) return kInvalidValue;
  out = {};
  out.type = static_cast<cudaGraphNodeType>(from->type);
  switch (out.type) {
    case cudaGraphNodeTypeMemcpy:
      return volume_of(&from->memcpy.copyParams, out.memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
      out.memset = {as_pointer(from->memset.dst), from->memset.pitch, from->memset.value,
                    from->memset.elementSize,     from->memset.width, from->memset.height};
      return kSuccess;
    case cudaGraphNodeTypeHost:
      out.host = {from->host.fn, from->host.userData};
      return kSuccess;
    case cudaGraphNodeTypeGraph:
      out.graph = {from->graph.graph,
                   static_cast<cudaGraphChildGraphNodeOwnership>(from->graph.ownership)};
      return kSuccess;
    case cudaGraphNodeTypeEmpty:
      return kSuccess;
    case cudaGraphNodeTypeWaitEvent:
      out.eventWait.event = from->event;
      return kSuccess;
    case cudaGraphNodeTypeEventRecord:
      out.eventRecord.event = from->event;
      return kSuccess;
    default:
      return kNotSupported;  // kernels, and nodes that need hardware
  }
}

/// Runs body(), which returns a cudaError_t; most calls about graphs need no context.
template <typename Body>
CUresult call(Body&& body) {
  return is_initialized() ? of(body()) : kNotInitialized;
}

}  // namespace

extern "C" {

// ---- to add

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                             size_t count) {
  return call([&] { return cudaGraphAddEmptyNode(node, graph, after, count); });
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                            size_t count, const cudaHostNodeParams* parameters) {
  return call([&] { return cudaGraphAddHostNode(node, graph, after, count, parameters); });
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMCPY3D* copy, CUcontext /*context*/) {
  cudaMemcpy3DParms volume;
  if (const CUresult result = volume_of(copy, volume); result != kSuccess) return result;
  return call([&] { return cudaGraphAddMemcpyNode(node, graph, after, count, &volume); });
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* set,
                              CUcontext /*context*/) {
  if (set == nullptr) return kInvalidValue;
  const cudaMemsetParams parameters = set_of(*set);
  return call([&] { return cudaGraphAddMemsetNode(node, graph, after, count, &parameters); });
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t count, CUgraph child) {
  return call([&] { return cudaGraphAddChildGraphNode(node, graph, after, count, child); });
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                   size_t count, CUevent event) {
  return call([&] { return cudaGraphAddEventRecordNode(node, graph, after, count, event); });
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                 size_t count, CUevent event) {
  return call([&] { return cudaGraphAddEventWaitNode(node, graph, after, count, event); });
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                           const cudaGraphEdgeData* edges, size_t count, CUgraphNodeParams* from) {
  cudaGraphNodeParams parameters;
  if (const CUresult result = parameters_of(from, parameters); result != kSuccess) return result;
  const CUresult result =
      call([&] { return cudaGraphAddNode(node, graph, after, edges, count, &parameters); });
  if (result == kSuccess && parameters.type == cudaGraphNodeTypeGraph)
    from->graph.graph = parameters.graph.graph;
  return result;
}

// ---- to read and change

CUresult cuGraphNodeGetType(CUgraphNode node, int* type) {
  if (type == nullptr) return kInvalidValue;
  cudaGraphNodeType found{};
  const CUresult result = call([&] { return cudaGraphNodeGetType(node, &found); });
  if (result == kSuccess) *type = static_cast<int>(found);
  return result;
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* from) {
  cudaGraphNodeParams parameters;
  if (const CUresult result = parameters_of(from, parameters); result != kSuccess) return result;
  return call([&] { return cudaGraphNodeSetParams(node, &parameters); });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                  CUgraphNodeParams* from) {
  cudaGraphNodeParams parameters;
  if (const CUresult result = parameters_of(from, parameters); result != kSuccess) return result;
  return call([&] { return cudaGraphExecNodeSetParams(executable, node, &parameters); });
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, cudaHostNodeParams* parameters) {
  return call([&] { return cudaGraphHostNodeGetParams(node, parameters); });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const cudaHostNodeParams* parameters) {
  return call([&] { return cudaGraphHostNodeSetParams(node, parameters); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                      const cudaHostNodeParams* parameters) {
  return call([&] { return cudaGraphExecHostNodeSetParams(executable, node, parameters); });
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* copy) {
  if (copy == nullptr) return kInvalidValue;
  cudaMemcpy3DParms volume;
  const CUresult result = call([&] { return cudaGraphMemcpyNodeGetParams(node, &volume); });
  if (result == kSuccess) *copy = copy_of(volume);
  return result;
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  cudaMemcpy3DParms volume;
  if (const CUresult result = volume_of(copy, volume); result != kSuccess) return result;
  return call([&] { return cudaGraphMemcpyNodeSetParams(node, &volume); });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMCPY3D* copy, CUcontext /*context*/) {
  cudaMemcpy3DParms volume;
  if (const CUresult result = volume_of(copy, volume); result != kSuccess) return result;
  return call([&] { return cudaGraphExecMemcpyNodeSetParams(executable, node, &volume); });
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* set) {
  if (set == nullptr) return kInvalidValue;
  cudaMemsetParams found;
  const CUresult result = call([&] { return cudaGraphMemsetNodeGetParams(node, &found); });
  if (result == kSuccess)
    *set = {reinterpret_cast<CUdeviceptr>(found.dst),
            found.pitch,
            found.value,
            found.elementSize,
            found.width,
            found.height};
  return result;
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* set) {
  if (set == nullptr) return kInvalidValue;
  const cudaMemsetParams parameters = set_of(*set);
  return call([&] { return cudaGraphMemsetNodeSetParams(node, &parameters); });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* set, CUcontext /*context*/) {
  if (set == nullptr) return kInvalidValue;
  const cudaMemsetParams parameters = set_of(*set);
  return call([&] { return cudaGraphExecMemsetNodeSetParams(executable, node, &parameters); });
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return call([&] { return cudaGraphEventRecordNodeGetEvent(node, event); });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return call([&] { return cudaGraphEventRecordNodeSetEvent(node, event); });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node,
                                            CUevent event) {
  return call([&] { return cudaGraphExecEventRecordNodeSetEvent(executable, node, event); });
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return call([&] { return cudaGraphEventWaitNodeGetEvent(node, event); });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return call([&] { return cudaGraphEventWaitNodeSetEvent(node, event); });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node, CUevent event) {
  return call([&] { return cudaGraphExecEventWaitNodeSetEvent(executable, node, event); });
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  return call([&] { return cudaGraphChildGraphNodeGetGraph(node, graph); });
}
CUresult cuGraphDestroyNode(CUgraphNode node) {
  return call([&] { return cudaGraphDestroyNode(node); });
}

// ---- the graph around a node

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return call([&] { return cudaGraphGetRootNodes(graph, nodes, count); });
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            cudaGraphEdgeData* edges, size_t* count) {
  return call([&] { return cudaGraphGetEdges(graph, from, to, edges, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes,
                                       cudaGraphEdgeData* edges, size_t* count) {
  return call([&] { return cudaGraphNodeGetDependencies(node, nodes, edges, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return call([&] { return cudaGraphNodeGetDependentNodes(node, nodes, edges, count); });
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t count) {
  return call([&] { return cudaGraphAddDependencies(graph, from, to, nullptr, count); });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t count) {
  return call([&] { return cudaGraphRemoveDependencies(graph, from, to, nullptr, count); });
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const cudaGraphEdgeData* edges, size_t count) {
  return call([&] { return cudaGraphAddDependencies(graph, from, to, edges, count); });
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const cudaGraphEdgeData* edges, size_t count) {
  return call([&] { return cudaGraphRemoveDependencies(graph, from, to, edges, count); });
}
CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  return call([&] { return cudaGraphClone(clone, graph); });
}
CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode node, CUgraph clone) {
  return call([&] { return cudaGraphNodeFindInClone(found, node, clone); });
}
CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                              cudaGraphExecUpdateResultInfo* result) {
  return call([&] { return cudaGraphExecUpdate(executable, graph, result); });
}

// ---- copies of three dimensions

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  cudaMemcpy3DParms volume;
  if (const CUresult result = volume_of(copy, volume); result != kSuccess) return result;
  return in_context([&] { return of(cudaMemcpy3D(&volume)); });
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  cudaMemcpy3DParms volume;
  if (const CUresult result = volume_of(copy, volume); result != kSuccess) return result;
  return in_context([&] { return of(cudaMemcpy3DAsync(&volume, stream)); });
}

}  // extern "C"
