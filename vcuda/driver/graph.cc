// Graphs that streams capture, and the objects that graphs keep alive.
#include "vcuda/driver/context.h"

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  return is_initialized() ? of(cudaGraphCreate(graph, flags)) : kNotInitialized;
}
CUresult cuGraphDestroy(CUgraph graph) {
  return is_initialized() ? of(cudaGraphDestroy(graph)) : kNotInitialized;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return is_initialized() ? of(cudaGraphGetNodes(graph, nodes, count)) : kNotInitialized;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long flags) {
  return in_context([&] { return of(cudaGraphInstantiateWithFlags(made, graph, flags)); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* made, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return kInvalidValue;
  constexpr int kDone = 0, kFailed = 1;  // CUDA_GRAPH_INSTANTIATE_SUCCESS, _ERROR
  constexpr unsigned long long kUploads = 2;
  const CUresult result = cuGraphInstantiateWithFlags(made, graph, parameters->flags & ~kUploads);
  parameters->result_out = result == kSuccess ? kDone : kFailed;
  parameters->hErrNode_out = nullptr;
  return result;
}
CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
  return in_context([&] { return of(cudaGraphUpload(graph, stream)); });
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return in_context([&] { return of(cudaGraphLaunch(graph, stream)); });
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  return is_initialized() ? of(cudaGraphExecDestroy(graph)) : kNotInitialized;
}
CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy,
                            unsigned int references, unsigned int flags) {
  if (!is_initialized()) return kNotInitialized;
  return of(cudaUserObjectCreate(object, data, destroy, references, flags));
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return is_initialized() ? of(cudaUserObjectRetain(object, count)) : kNotInitialized;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  return is_initialized() ? of(cudaUserObjectRelease(object, count)) : kNotInitialized;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  if (!is_initialized()) return kNotInitialized;
  return of(cudaGraphRetainUserObject(graph, object, count, flags));
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  return is_initialized() ? of(cudaGraphReleaseUserObject(graph, object, count)) : kNotInitialized;
}

}  // extern "C"
