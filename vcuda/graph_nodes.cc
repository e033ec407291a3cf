// Nodes of graphs: made, joined and changed by hand; clones; updates of executables.
#include <algorithm>
#include <utility>
#include <vector>

#include "vcuda/call.h"
#include "vcuda/volume.h"

using niccolite::gpu::virtual_::ChildGraph;
using niccolite::gpu::virtual_::Copy;
using niccolite::gpu::virtual_::Edge;
using niccolite::gpu::virtual_::HostCall;
using niccolite::gpu::virtual_::kind_of;
using niccolite::gpu::virtual_::Nothing;
using niccolite::gpu::virtual_::RecordEvent;
using niccolite::gpu::virtual_::Set;
using niccolite::gpu::virtual_::UpdateInfo;
using niccolite::gpu::virtual_::WaitEvent;
using niccolite::gpu::virtual_::Work;
using vcuda::call;
using vcuda::copy_of;
using vcuda::Error;
using vcuda::Runtime;
using vcuda::volume_of;

namespace {

// ---- from parameters to work

Error work_of(const cudaHostNodeParams* from, Work* out) {
  if (from == nullptr) return Error::InvalidValue;
  *out = HostCall{nullptr, from->fn, from->userData};
  return Error::None;
}

Error work_of(const cudaMemcpy3DParms* from, Work* out) {
  Copy copy{};
  TRY_VIRTUAL(copy_of(from, &copy));
  *out = copy;
  return Error::None;
}

Error work_of(const cudaMemsetParams* from, Work* out) {
  if (from == nullptr || from->width > SIZE_MAX / 4) return Error::InvalidValue;
  const size_t width = from->width * from->elementSize;
  if (from->height > 1 && width > from->pitch) return Error::InvalidValue;
  *out = Set{static_cast<std::byte*>(from->dst),
             from->value,
             width,
             from->height,
             from->pitch,
             from->elementSize};
  return Error::None;
}

Error work_of(const cudaGraphNodeParams* from, Work* out) {
  if (from == nullptr) return Error::InvalidValue;
  const cudaHostNodeParams host{from->host.fn, from->host.userData};
  cudaMemsetParams set{};
  switch (from->type) {
    case cudaGraphNodeTypeMemcpy:
      return work_of(&from->memcpy.copyParams, out);
    case cudaGraphNodeTypeMemset:
      set = {from->memset.dst,         from->memset.pitch, from->memset.value,
             from->memset.elementSize, from->memset.width, from->memset.height};
      return work_of(&set, out);
    case cudaGraphNodeTypeHost:
      return work_of(&host, out);
    case cudaGraphNodeTypeGraph:
      if (from->graph.ownership != cudaGraphChildGraphOwnershipClone) return Error::NotSupported;
      *out = ChildGraph{nullptr, from->graph.graph};
      return Error::None;
    case cudaGraphNodeTypeEmpty:
      *out = Nothing{};
      return Error::None;
    case cudaGraphNodeTypeWaitEvent:
      *out = WaitEvent{nullptr, from->eventWait.event};
      return Error::None;
    case cudaGraphNodeTypeEventRecord:
      *out = RecordEvent{nullptr, from->eventRecord.event};
      return Error::None;
    default:
      return Error::NotSupported;
  }
}

// ---- nodes

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                size_t count, Work work) {
  return call([&](Runtime& runtime) {
    if (node == nullptr || (after == nullptr && count > 0)) return Error::InvalidValue;
    void* made = nullptr;
    TRY_VIRTUAL(
        runtime.add_node(graph, std::vector<void*>(after, after + count), std::move(work), &made));
    *node = static_cast<cudaGraphNode_t>(made);
    return Error::None;
  });
}

template <typename Parameters>
cudaError_t add_as(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                   size_t count, const Parameters* parameters) {
  Work work;
  const Error error = work_of(parameters, &work);
  if (error != Error::None) return vcuda::keep(static_cast<cudaError_t>(error));
  return add(node, graph, after, count, std::move(work));
}

template <typename Parameters>
cudaError_t change(cudaGraphNode_t node, const Parameters* parameters) {
  return call([&](Runtime& runtime) {
    Work work;
    TRY_VIRTUAL(work_of(parameters, &work));
    return runtime.set_node_work(node, std::move(work));
  });
}

template <typename Parameters>
cudaError_t change_in(cudaGraphExec_t executable, cudaGraphNode_t node,
                      const Parameters* parameters) {
  return call([&](Runtime& runtime) {
    Work work;
    TRY_VIRTUAL(work_of(parameters, &work));
    return runtime.set_executable_work(executable, node, std::move(work));
  });
}

/// Calls read(work), which returns an Error, for a node whose work is a Kind.
template <typename Kind, typename Read>
cudaError_t read(cudaGraphNode_t node, const void* out, Read&& read) {
  return call([&](Runtime& runtime) {
    Work work;
    if (out == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(runtime.node_work(node, &work));
    const auto* found = std::get_if<Kind>(&work);
    if (found == nullptr) return Error::InvalidValue;
    return read(*found);
  });
}

// ---- lists, as CUDA gives them: as many entries as there is room for, and nulls in the remaining
// room

void give(const std::vector<void*>& found, cudaGraphNode_t* out, size_t room) {
  for (size_t i = 0; i < room; ++i)
    out[i] = i < found.size() ? static_cast<cudaGraphNode_t>(found[i]) : nullptr;
}

template <typename List>
cudaError_t list_nodes(cudaGraphNode_t* out, cudaGraphEdgeData* edges, size_t* count, List&& list) {
  return call([&](Runtime& runtime) {
    if (count == nullptr) return Error::InvalidValue;
    std::vector<void*> found;
    TRY_VIRTUAL(list(runtime, &found));
    if (out != nullptr) {
      give(found, out, *count);
      if (edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
      *count = std::min(*count, found.size());
    } else {
      *count = found.size();
    }
    return Error::None;
  });
}

Error edges_of(const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count,
               std::vector<Edge>* out) {
  if ((from == nullptr || to == nullptr) && count > 0) return Error::InvalidValue;
  for (size_t i = 0; i < count; ++i) out->emplace_back(from[i], to[i]);
  return Error::None;
}

}  // namespace

namespace vcuda {

Error copy_of(const cudaMemcpy3DParms* volume, Copy* out) {
  if (volume == nullptr || volume->srcArray != nullptr || volume->dstArray != nullptr)
    return Error::InvalidValue;
  if (static_cast<unsigned int>(volume->kind) > cudaMemcpyDefault)
    return Error::InvalidMemcpyDirection;
  const cudaExtent& extent = volume->extent;
  const auto begin_of = [](const cudaPitchedPtr& area, const cudaPos& at) {
    return static_cast<std::byte*>(area.ptr) + (at.z * area.ysize + at.y) * area.pitch + at.x;
  };
  const auto fits = [&extent](const cudaPitchedPtr& area) {
    if (extent.height > 1 && extent.width > area.pitch) return false;
    return extent.depth <= 1 || extent.height <= area.ysize;
  };
  if (!fits(volume->srcPtr) || !fits(volume->dstPtr)) return Error::InvalidPitchValue;
  *out = {};
  out->target = begin_of(volume->dstPtr, volume->dstPos);
  out->source = begin_of(volume->srcPtr, volume->srcPos);
  out->width = extent.width;
  out->rows = extent.height;
  out->target_pitch = volume->dstPtr.pitch;
  out->source_pitch = volume->srcPtr.pitch;
  out->slices = extent.depth;
  const auto slice_of = [&extent](const cudaPitchedPtr& area, size_t* bytes) {
    return !__builtin_mul_overflow(area.pitch, area.ysize, bytes) || extent.depth <= 1;
  };
  const bool have_slices =
      slice_of(volume->dstPtr, &out->target_slice) && slice_of(volume->srcPtr, &out->source_slice);
  return have_slices ? Error::None : Error::InvalidValue;
}

cudaMemcpy3DParms volume_of(const Copy& copy) {
  const auto area_of = [&copy](const std::byte* begin, size_t pitch, size_t slice) {
    const size_t height = pitch > 0 && slice > 0 ? slice / pitch : copy.rows;
    return cudaPitchedPtr{const_cast<std::byte*>(begin), pitch, copy.width, height};
  };
  cudaMemcpy3DParms volume{};
  volume.srcPtr = area_of(copy.source, copy.source_pitch, copy.source_slice);
  volume.dstPtr = area_of(copy.target, copy.target_pitch, copy.target_slice);
  volume.extent = {copy.width, copy.rows, copy.slices};
  volume.kind = cudaMemcpyDefault;
  return volume;
}

}  // namespace vcuda

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* after, size_t count) {
  return add(node, graph, after, count, Nothing{});
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                 const cudaGraphNode_t* after, size_t count,
                                 const cudaHostNodeParams* parameters) {
  return add_as(node, graph, after, count, parameters);
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemcpy3DParms* parameters) {
  return add_as(node, graph, after, count, parameters);
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* after, size_t count, void* target,
                                     const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (static_cast<unsigned int>(kind) > cudaMemcpyDefault)
    return vcuda::keep(cudaErrorInvalidMemcpyDirection);
  const Copy copy{static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes};
  return add(node, graph, after, count, copy);
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* after, size_t count,
                                   const cudaMemsetParams* parameters) {
  return add_as(node, graph, after, count, parameters);
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                       const cudaGraphNode_t* after, size_t count,
                                       cudaGraph_t child) {
  return add(node, graph, after, count, ChildGraph{nullptr, child});
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                        const cudaGraphNode_t* after, size_t count,
                                        cudaEvent_t event) {
  return add(node, graph, after, count, RecordEvent{nullptr, event});
}
cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                      const cudaGraphNode_t* after, size_t count,
                                      cudaEvent_t event) {
  return add(node, graph, after, count, WaitEvent{nullptr, event});
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                             const cudaGraphEdgeData*, size_t count,
                             cudaGraphNodeParams* parameters) {
  const cudaError_t result =
      add_as(node, graph, after, count, static_cast<const cudaGraphNodeParams*>(parameters));
  // The graph that is the node is told where the other was named.
  if (result == cudaSuccess && parameters->type == cudaGraphNodeTypeGraph)
    return cudaGraphChildGraphNodeGetGraph(*node, &parameters->graph.graph);
  return result;
}

cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* parameters) {
  return change(node, static_cast<const cudaGraphNodeParams*>(parameters));
}
cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                       cudaGraphNodeParams* parameters) {
  return change_in(executable, node, static_cast<const cudaGraphNodeParams*>(parameters));
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* parameters) {
  return read<HostCall>(node, parameters, [&](const HostCall& host) {
    *parameters = {host.function, host.data};
    return Error::None;
  });
}
cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* parameters) {
  return change(node, parameters);
}
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                           const cudaHostNodeParams* parameters) {
  return change_in(executable, node, parameters);
}
cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* parameters) {
  return read<Copy>(node, parameters, [&](const Copy& copy) {
    *parameters = volume_of(copy);
    return Error::None;
  });
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                         const cudaMemcpy3DParms* parameters) {
  return change(node, parameters);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* parameters) {
  return change_in(executable, node, parameters);
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* parameters) {
  return read<Set>(node, parameters, [&](const Set& set) {
    const auto element = static_cast<unsigned int>(set.element_bytes);
    *parameters = {set.target, set.pitch, set.value, element, set.width / element, set.rows};
    return Error::None;
  });
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* parameters) {
  return change(node, parameters);
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaMemsetParams* parameters) {
  return change_in(executable, node, parameters);
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return read<RecordEvent>(node, event, [&](const RecordEvent& record) {
    *event = static_cast<cudaEvent_t>(record.handle);
    return Error::None;
  });
}
cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return call([&](Runtime& runtime) {
    return runtime.set_node_work(node, RecordEvent{nullptr, event});
  });
}
cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable, cudaGraphNode_t node,
                                                 cudaEvent_t event) {
  return call([&](Runtime& runtime) {
    return runtime.set_executable_work(executable, node, RecordEvent{nullptr, event});
  });
}
cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return read<WaitEvent>(node, event, [&](const WaitEvent& wait) {
    *event = static_cast<cudaEvent_t>(wait.handle);
    return Error::None;
  });
}
cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return call([&](Runtime& runtime) {
    return runtime.set_node_work(node, WaitEvent{nullptr, event});
  });
}
cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t executable, cudaGraphNode_t node,
                                               cudaEvent_t event) {
  return call([&](Runtime& runtime) {
    return runtime.set_executable_work(executable, node, WaitEvent{nullptr, event});
  });
}
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  return read<ChildGraph>(node, graph, [&](const ChildGraph& child) {
    *graph = static_cast<cudaGraph_t>(child.handle);
    return Error::None;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call([&](Runtime& runtime) {
    Work work;
    if (type == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(runtime.node_work(node, &work));
    *type = static_cast<cudaGraphNodeType>(kind_of(work));
    return Error::None;
  });
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return call([&](Runtime& runtime) { return runtime.remove_node(node); });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return list_nodes(nodes, nullptr, count, [&](Runtime& runtime, std::vector<void*>* found) {
    return runtime.graph_nodes(graph, /*only_roots=*/false, found);
  });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return list_nodes(nodes, nullptr, count, [&](Runtime& runtime, std::vector<void*>* found) {
    return runtime.graph_nodes(graph, /*only_roots=*/true, found);
  });
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return list_nodes(nodes, edges, count, [&](Runtime& runtime, std::vector<void*>* found) {
    return runtime.node_neighbours(node, /*after_it=*/false, found);
  });
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                           cudaGraphEdgeData* edges, size_t* count) {
  return list_nodes(nodes, edges, count, [&](Runtime& runtime, std::vector<void*>* found) {
    return runtime.node_neighbours(node, /*after_it=*/true, found);
  });
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edges, size_t* count) {
  return call([&](Runtime& runtime) {
    if (count == nullptr || (from == nullptr) != (to == nullptr)) return Error::InvalidValue;
    std::vector<Edge> found;
    TRY_VIRTUAL(runtime.graph_edges(graph, &found));
    if (from == nullptr) {
      *count = found.size();
      return Error::None;
    }
    std::vector<void*> begins, ends;
    for (const Edge& edge : found) {
      begins.push_back(edge.first);
      ends.push_back(edge.second);
    }
    give(begins, from, *count);
    give(ends, to, *count);
    if (edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
    *count = std::min(*count, found.size());
    return Error::None;
  });
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t count) {
  return call([&](Runtime& runtime) {
    std::vector<Edge> edges;
    TRY_VIRTUAL(edges_of(from, to, count, &edges));
    return runtime.add_edges(graph, edges);
  });
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                        size_t count) {
  return call([&](Runtime& runtime) {
    std::vector<Edge> edges;
    TRY_VIRTUAL(edges_of(from, to, count, &edges));
    return runtime.remove_edges(graph, edges);
  });
}

cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return call([&](Runtime& runtime) {
    void* made = nullptr;
    if (clone == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(runtime.clone_graph(graph, &made));
    *clone = static_cast<cudaGraph_t>(made);
    return Error::None;
  });
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t node,
                                     cudaGraph_t clone) {
  return call([&](Runtime& runtime) {
    void* there = nullptr;
    if (found == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(runtime.find_in_clone(node, clone, &there));
    *found = static_cast<cudaGraphNode_t>(there);
    return Error::None;
  });
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  return call([&](Runtime& runtime) {
    UpdateInfo info;
    const Error error = runtime.update_executable(executable, graph, &info);
    if (result != nullptr)
      *result = {static_cast<cudaGraphExecUpdateResult>(info.result),
                 static_cast<cudaGraphNode_t>(info.node), nullptr};
    return error;
  });
}
