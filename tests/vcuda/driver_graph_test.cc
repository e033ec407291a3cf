// Nodes of graphs by libcuda.so.1: the errors expected here are those of CUDA's driver 13.0.
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "driver_fixture.h"

namespace {

#define ASSERT_NCCL(...) ASSERT_EQ((__VA_ARGS__), ncclSuccess) << ncclGetLastError(nullptr)

void count_up(void* counter) { ++*static_cast<int*>(counter); }
void add_ten(void* counter) { *static_cast<int*>(counter) += 10; }

CUDA_HOST_NODE_PARAMS host_call(CUhostFn function, int* counter) {
  CUDA_HOST_NODE_PARAMS parameters{};
  parameters.fn = function;
  parameters.userData = counter;
  return parameters;
}
CUDA_MEMSET_NODE_PARAMS words(CUdeviceptr target, unsigned int value, size_t count) {
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = target;
  parameters.value = value;
  parameters.elementSize = 4;
  parameters.width = count;
  parameters.height = 1;
  return parameters;
}
CUDA_MEMCPY3D to_host(void* target, CUdeviceptr source, size_t bytes) {
  CUDA_MEMCPY3D parameters{};
  parameters.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  parameters.srcDevice = source;
  parameters.dstMemoryType = CU_MEMORYTYPE_HOST;
  parameters.dstHost = target;
  parameters.WidthInBytes = bytes;
  parameters.Height = parameters.Depth = 1;
  return parameters;
}

class Graphs : public Driver {
 protected:
  void SetUp() override {
    Driver::SetUp();
    ASSERT_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuGraphCreate(&graph_, 0));
    ASSERT_CU(cuMemAlloc(&memory_, 4096));
  }
  void TearDown() override {
    EXPECT_EQ(cuMemFree(memory_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
    Driver::TearDown();
  }
  CUgraphNode add_host(CUgraph graph, std::vector<CUgraphNode> after, CUhostFn function,
                       int* counter) {
    CUgraphNode node = nullptr;
    const CUDA_HOST_NODE_PARAMS parameters = host_call(function, counter);
    EXPECT_EQ(cuGraphAddHostNode(&node, graph, after.data(), after.size(), &parameters),
              CUDA_SUCCESS);
    return node;
  }
  CUgraphNode add_empty(CUgraph graph, std::vector<CUgraphNode> after) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph, after.data(), after.size()), CUDA_SUCCESS);
    return node;
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec made = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&made, graph, 0), CUDA_SUCCESS);
    return made;
  }
  void launch(CUgraphExec executable) {
    ASSERT_CU(cuGraphLaunch(executable, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
  }
  void run(CUgraph graph) {
    const CUgraphExec executable = instantiate(graph);
    launch(executable);
    ASSERT_CU(cuGraphExecDestroy(executable));
  }
  size_t node_count(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
  }
  CUstream stream_ = nullptr;
  CUgraph graph_ = nullptr;
  CUdeviceptr memory_ = 0;
};

TEST_F(Graphs, RunNodesThatWereMadeByHand) {
  CUgraphNode set = nullptr, copy = nullptr;
  std::vector<uint32_t> host(8);
  int counter = 0, seen = 0;
  const CUDA_MEMSET_NODE_PARAMS fill = words(memory_ + 4, 0x01020304, 6);
  ASSERT_CU(cuMemsetD8(memory_, 0, 64));
  ASSERT_CU(cuGraphAddMemsetNode(&set, graph_, nullptr, 0, &fill, context_));
  const CUDA_MEMCPY3D read = to_host(host.data(), memory_, 32);
  ASSERT_CU(cuGraphAddMemcpyNode(&copy, graph_, &set, 1, &read, context_));
  struct Look {
    const std::vector<uint32_t>* host;
    int* seen;
  } look{&host, &seen};
  CUDA_HOST_NODE_PARAMS parameters{};
  parameters.fn = [](void* data) {
    const Look& at = *static_cast<Look*>(data);
    *at.seen = static_cast<int>(std::count(at.host->begin(), at.host->end(), 0x01020304u));
  };
  parameters.userData = &look;
  CUgraphNode last = nullptr;
  const CUgraphNode other = add_host(graph_, {}, count_up, &counter);
  const std::array<CUgraphNode, 2> both{copy, other};
  ASSERT_CU(cuGraphAddHostNode(&last, graph_, both.data(), both.size(), &parameters));
  const CUgraphExec executable = instantiate(graph_);
  for (int i = 0; i < 3; ++i) launch(executable);
  EXPECT_EQ(seen, 6) << "the copy came after the fill, and before the look";
  EXPECT_EQ(host.front(), 0u);
  EXPECT_EQ(host.back(), 0u);
  EXPECT_EQ(counter, 3);

  // The executable alone is changed, then the node.
  const CUDA_MEMSET_NODE_PARAMS less = words(memory_, 5, 2);
  ASSERT_CU(cuGraphExecMemsetNodeSetParams(executable, set, &less, context_));
  const CUDA_HOST_NODE_PARAMS more = host_call(add_ten, &counter);
  ASSERT_CU(cuGraphExecHostNodeSetParams(executable, other, &more));
  launch(executable);
  EXPECT_EQ(host[0], 5u);
  EXPECT_EQ(host[2], 0x01020304u) << "from before";
  EXPECT_EQ(counter, 13);
  EXPECT_EQ(cuGraphExecMemsetNodeSetParams(executable, copy, &less, context_),
            CUDA_ERROR_INVALID_VALUE)
      << "no memset";
  CUDA_MEMSET_NODE_PARAMS found{};
  ASSERT_CU(cuGraphMemsetNodeGetParams(set, &found));
  EXPECT_EQ(found.dst, memory_ + 4);
  EXPECT_EQ(found.value, 0x01020304u);
  EXPECT_EQ(found.width, 6u);
  ASSERT_CU(cuGraphMemsetNodeSetParams(set, &less));
  ASSERT_CU(cuGraphMemsetNodeGetParams(set, &found));
  EXPECT_EQ(found.dst, memory_);
  CUDA_MEMCPY3D copied{};
  ASSERT_CU(cuGraphMemcpyNodeGetParams(copy, &copied));
  EXPECT_EQ(copied.srcMemoryType, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(copied.srcDevice, memory_);
  EXPECT_EQ(copied.dstHost, host.data());
  EXPECT_EQ(copied.WidthInBytes, 32u);
  CUDA_HOST_NODE_PARAMS called{};
  ASSERT_CU(cuGraphHostNodeGetParams(other, &called));
  EXPECT_EQ(called.fn, &count_up);
  EXPECT_EQ(called.userData, &counter);
  ASSERT_CU(cuGraphExecDestroy(executable));
}

TEST_F(Graphs, TellTheirNodesAndEdges) {
  int counter = 0;
  const CUgraphNode root = add_empty(graph_, {});
  const CUgraphNode left = add_host(graph_, {root}, count_up, &counter);
  const CUgraphNode right = add_host(graph_, {root}, count_up, &counter);
  ASSERT_CU(cuGraphAddDependencies(graph_, &left, &right, nullptr, 1));
  EXPECT_EQ(cuGraphAddDependencies(graph_, &left, &right, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies(graph_, &left, &left, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  size_t count = 0;
  ASSERT_CU(cuGraphGetEdges(graph_, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 3u);
  std::array<CUgraphNode, 8> from{}, to{};
  std::array<CUgraphEdgeData, 8> data;
  std::fill_n(reinterpret_cast<unsigned char*>(data.data()), sizeof data, 0xff);
  count = from.size();
  ASSERT_CU(cuGraphGetEdges(graph_, from.data(), to.data(), data.data(), &count));
  ASSERT_EQ(count, 3u);
  std::vector<std::pair<CUgraphNode, CUgraphNode>> edges;
  for (size_t i = 0; i < count; ++i) edges.emplace_back(from[i], to[i]);
  for (const auto& edge : {std::pair{root, left}, {root, right}, {left, right}})
    EXPECT_EQ(std::count(edges.begin(), edges.end(), edge), 1);
  EXPECT_EQ(data[0].type, 0);
  EXPECT_EQ(from[3], nullptr);
  count = 1;
  ASSERT_CU(cuGraphGetEdges(graph_, from.data(), to.data(), nullptr, &count));
  EXPECT_EQ(count, 1u) << "as many as there is room for";
  count = from.size();
  ASSERT_CU(cuGraphGetRootNodes(graph_, from.data(), &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(from[0], root);
  count = from.size();
  ASSERT_CU(cuGraphNodeGetDependencies(right, from.data(), nullptr, &count));
  EXPECT_EQ(count, 2u);
  count = from.size();
  ASSERT_CU(cuGraphNodeGetDependentNodes(left, from.data(), nullptr, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(from[0], right);
  CUgraphNodeType type{};
  ASSERT_CU(cuGraphNodeGetType(root, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  ASSERT_CU(cuGraphNodeGetType(left, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_HOST);

  // A circle is found out when it is to run.
  ASSERT_CU(cuGraphAddDependencies(graph_, &right, &left, nullptr, 1));
  CUgraphExec executable = nullptr;
  EXPECT_EQ(cuGraphInstantiate(&executable, graph_, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuGraphRemoveDependencies(graph_, &right, &left, nullptr, 1));
  EXPECT_EQ(cuGraphRemoveDependencies(graph_, &right, &left, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuGraphDestroyNode(left));
  EXPECT_EQ(cuGraphDestroyNode(left), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphNodeGetType(left, &type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(node_count(graph_), 2u);
  run(graph_);
  EXPECT_EQ(counter, 1);
}

TEST_F(Graphs, RefuseBadNodes) {
  CUgraphNode node = nullptr;
  const CUgraphNode there = add_empty(graph_, {});
  const std::array<CUgraphNode, 2> twice{there, there}, null{there, nullptr};
  EXPECT_EQ(cuGraphAddEmptyNode(&node, graph_, twice.data(), 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddEmptyNode(&node, graph_, null.data(), 2), CUDA_ERROR_INVALID_VALUE);
  CUgraph other = nullptr;
  ASSERT_CU(cuGraphCreate(&other, 0));
  EXPECT_EQ(cuGraphAddEmptyNode(&node, other, &there, 1), CUDA_ERROR_INVALID_VALUE)
      << "of another graph";
  const CUDA_HOST_NODE_PARAMS nothing = host_call(nullptr, nullptr);
  EXPECT_EQ(cuGraphAddHostNode(&node, graph_, nullptr, 0, &nothing), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS fill = words(memory_, 1, 10);
  fill.elementSize = 3;
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_),
            CUDA_ERROR_INVALID_VALUE);
  fill = words(memory_, 1, 10);
  fill.height = 0;
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_),
            CUDA_ERROR_INVALID_VALUE);
  fill = words(0, 1, 10);
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_),
            CUDA_ERROR_INVALID_VALUE);
  fill = words(memory_, 1, 4096);
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_),
            CUDA_ERROR_INVALID_VALUE)
      << "more than there is";
  CUgraphNodeParams kernel{};
  kernel.type = CU_GRAPH_NODE_TYPE_KERNEL;
  EXPECT_EQ(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &kernel), CUDA_ERROR_NOT_SUPPORTED);
  CUDA_KERNEL_NODE_PARAMS launch{};
  EXPECT_EQ(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(node_count(graph_), 1u);
  ASSERT_CU(cuGraphDestroy(other));
}

TEST_F(Graphs, CopyAndFillInTwoAndThreeDimensions) {
  constexpr size_t kPitch = 16, kHeight = 4, kDepth = 3;
  std::vector<unsigned char> host(kPitch * kHeight * kDepth);
  std::iota(host.begin(), host.end(), static_cast<unsigned char>(0));
  CUDA_MEMCPY3D part{};  // the inner 5 x 2 x 2 bytes, packed
  part.srcMemoryType = CU_MEMORYTYPE_HOST;
  part.srcHost = host.data();
  part.srcPitch = kPitch;
  part.srcHeight = kHeight;
  part.srcXInBytes = 3;
  part.srcY = part.srcZ = 1;
  part.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  part.dstDevice = memory_;
  part.dstPitch = part.WidthInBytes = 5;
  part.dstHeight = part.Height = part.Depth = 2;
  std::vector<unsigned char> expected, found(20);
  for (size_t z : {1, 2})
    for (size_t y : {1, 2})
      for (size_t x = 3; x < 8; ++x) expected.push_back(host[(z * kHeight + y) * kPitch + x]);
  ASSERT_CU(cuMemcpy3D(&part));
  ASSERT_CU(cuMemcpyDtoH(found.data(), memory_, found.size()));
  EXPECT_EQ(found, expected);

  ASSERT_CU(cuMemsetD8(memory_, 0, 64));
  CUgraphNodeParams copy{}, fill{};
  copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  copy.memcpy.copyParams = part;
  copy.memcpy.copyCtx = context_;
  fill.type = CU_GRAPH_NODE_TYPE_MEMSET;
  fill.memset = {.dst = memory_ + 32,
                 .pitch = 8,
                 .value = 0x0a0b,
                 .elementSize = 2,
                 .width = 3,
                 .height = 2,
                 .ctx = context_};
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_CU(cuGraphAddNode(&first, graph_, nullptr, nullptr, 0, &copy));
  ASSERT_CU(cuGraphAddNode(&second, graph_, &first, nullptr, 1, &fill));
  run(graph_);
  ASSERT_CU(cuMemcpyDtoH(found.data(), memory_, found.size()));
  EXPECT_EQ(found, expected);
  std::vector<uint16_t> filled(8);
  ASSERT_CU(cuMemcpyDtoH(filled.data(), memory_ + 32, 16));
  EXPECT_EQ(filled, (std::vector<uint16_t>{0x0a0b, 0x0a0b, 0x0a0b, 0, 0x0a0b, 0x0a0b, 0x0a0b, 0}));
  part.srcPitch = 4;
  EXPECT_NE(cuMemcpy3D(&part), CUDA_SUCCESS) << "rows that overlap";
}

TEST_F(Graphs, AreClonedAndUpdated) {
  int counter = 0;
  const CUgraphNode first = add_host(graph_, {}, count_up, &counter);
  add_host(graph_, {first}, count_up, &counter);
  CUgraph clone = nullptr;
  ASSERT_CU(cuGraphClone(&clone, graph_));
  CUgraphNode same = nullptr, extra = nullptr;
  ASSERT_CU(cuGraphNodeFindInClone(&same, first, clone));
  EXPECT_NE(same, first);
  EXPECT_EQ(cuGraphNodeFindInClone(&same, first, graph_), CUDA_ERROR_INVALID_VALUE);
  const CUDA_HOST_NODE_PARAMS more = host_call(add_ten, &counter);
  ASSERT_CU(cuGraphNodeFindInClone(&same, first, clone));
  ASSERT_CU(cuGraphHostNodeSetParams(same, &more));
  const CUgraphExec executable = instantiate(graph_);
  launch(executable);
  EXPECT_EQ(counter, 2) << "the clone alone was changed";

  CUgraphExecUpdateResultInfo info{};
  ASSERT_CU(cuGraphExecUpdate(executable, clone, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  launch(executable);
  EXPECT_EQ(counter, 13);
  extra = add_empty(clone, {});
  EXPECT_EQ(cuGraphExecUpdate(executable, clone, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  ASSERT_CU(cuGraphDestroyNode(extra));
  ASSERT_CU(cuGraphExecUpdate(executable, clone, &info));
  // Another edge, and then another kind of node.
  CUgraph other = nullptr;
  ASSERT_CU(cuGraphCreate(&other, 0));
  const CUgraphNode begin = add_host(other, {}, count_up, &counter);
  const CUgraphNode end = add_empty(other, {});
  EXPECT_EQ(cuGraphExecUpdate(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  ASSERT_CU(cuGraphAddDependencies(other, &begin, &end, nullptr, 1));
  EXPECT_EQ(cuGraphExecUpdate(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, end);
  counter = 0;
  launch(executable);
  EXPECT_EQ(counter, 11) << "a failed update changes nothing";
  ASSERT_CU(cuGraphExecDestroy(executable));
  ASSERT_CU(cuGraphDestroy(other));
  ASSERT_CU(cuGraphDestroy(clone));
}

TEST_F(Graphs, HaveGraphsAsNodes) {
  int counter = 0;
  CUgraph inner = nullptr, owned = nullptr;
  ASSERT_CU(cuGraphCreate(&inner, 0));
  const CUgraphNode begin = add_empty(inner, {});
  for (int i = 0; i < 3; ++i) add_host(inner, {begin}, count_up, &counter);
  struct Check {
    int* counter;
    int seen;
  } check{&counter, -1};
  const CUgraphNode before = add_host(graph_, {}, add_ten, &counter);
  CUgraphNode node = nullptr, after = nullptr;
  ASSERT_CU(cuGraphAddChildGraphNode(&node, graph_, &before, 1, inner));
  ASSERT_CU(cuGraphDestroy(inner));  // the node has its own
  CUDA_HOST_NODE_PARAMS look{};
  look.fn = [](void* data) {
    auto& at = *static_cast<Check*>(data);
    at.seen = *at.counter;
  };
  look.userData = &check;
  ASSERT_CU(cuGraphAddHostNode(&after, graph_, &node, 1, &look));
  run(graph_);
  EXPECT_EQ(check.seen, 13) << "all of the graph runs before what comes after it";
  CUgraphNodeType type{};
  ASSERT_CU(cuGraphNodeGetType(node, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_GRAPH);
  ASSERT_CU(cuGraphChildGraphNodeGetGraph(node, &owned));
  EXPECT_EQ(node_count(owned), 4u);
  EXPECT_EQ(node_count(graph_), 3u);
  EXPECT_EQ(cuGraphDestroy(owned), CUDA_ERROR_INVALID_VALUE) << "it is the node's";
  add_host(owned, {}, count_up, &counter);
  CUgraph clone = nullptr;
  ASSERT_CU(cuGraphClone(&clone, graph_));
  run(clone);
  EXPECT_EQ(check.seen, 27);
  ASSERT_CU(cuGraphDestroyNode(node));
  EXPECT_NE(cuGraphGetNodes(owned, nullptr, nullptr), CUDA_SUCCESS);
  run(clone);
  EXPECT_EQ(check.seen, 41) << "the clone has a graph of its own";
  ASSERT_CU(cuGraphDestroy(clone));
}

TEST_F(Graphs, RecordAndAwaitEvents) {
  CUevent begun = nullptr, done = nullptr;
  ASSERT_CU(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING));
  ASSERT_CU(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  CUgraphNode wait = nullptr, record = nullptr;
  int counter = 0;
  ASSERT_CU(cuGraphAddEventWaitNode(&wait, graph_, nullptr, 0, begun));
  const CUgraphNode count = add_host(graph_, {wait}, count_up, &counter);
  ASSERT_CU(cuGraphAddEventRecordNode(&record, graph_, &count, 1, done));
  CUevent found = nullptr;
  ASSERT_CU(cuGraphEventWaitNodeGetEvent(wait, &found));
  EXPECT_EQ(found, begun);
  EXPECT_EQ(cuGraphEventRecordNodeGetEvent(wait, &found), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec executable = instantiate(graph_);

  CUstream other = nullptr;
  CUdeviceptr word = memory_;
  ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuMemsetD32(word, 0, 1));
  ASSERT_CU(cuStreamWaitValue32(other, word, 1, CU_STREAM_WAIT_VALUE_EQ));
  ASSERT_CU(cuEventRecord(begun, other));
  ASSERT_CU(cuGraphLaunch(executable, stream_));
  EXPECT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(counter, 0);
  CUstream writer = nullptr;
  ASSERT_CU(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuStreamWriteValue32(writer, word, 1, 0));
  ASSERT_CU(cuEventSynchronize(done));
  EXPECT_EQ(counter, 1);
  ASSERT_CU(cuGraphExecDestroy(executable));
  for (CUstream one : {other, writer}) ASSERT_CU(cuStreamDestroy(one));
  ASSERT_CU(cuEventDestroy(begun));
  ASSERT_CU(cuEventDestroy(done));
}

TEST_F(Graphs, ShowAndChangeWhatACaptureComesAfter) {
  int counter = 0;
  CUstreamCaptureStatus status{};
  CUgraph captured = nullptr, ended = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 77;
  const auto ask = [&] {
    EXPECT_EQ(
        cuStreamGetCaptureInfo(stream_, &status, nullptr, &captured, &dependencies, &edges, &count),
        CUDA_SUCCESS);
  };
  ASSERT_CU(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  ask();
  EXPECT_EQ(count, 0u);
  ASSERT_CU(cuStreamWriteValue32(stream_, memory_, 1, 0));
  ASSERT_CU(cuLaunchHostFunc(stream_, count_up, &counter));
  ask();
  ASSERT_EQ(count, 1u);
  const CUgraphNode host = dependencies[0];
  CUgraphNodeType type{};
  ASSERT_CU(cuGraphNodeGetType(host, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_HOST);
  CUgraphNode made = add_host(captured, {}, add_ten, &counter);
  ASSERT_CU(cuStreamUpdateCaptureDependencies(stream_, &made, nullptr, 1,
                                              CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  ask();
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(edges[1].type, 0);
  ASSERT_CU(cuLaunchHostFunc(stream_, count_up, &counter));
  ask();
  ASSERT_EQ(count, 1u);
  size_t before = 0;
  ASSERT_CU(cuGraphNodeGetDependencies(dependencies[0], nullptr, nullptr, &before));
  EXPECT_EQ(before, 2u);
  CUgraphNode foreign = add_empty(graph_, {});
  EXPECT_EQ(cuStreamUpdateCaptureDependencies(stream_, &foreign, nullptr, 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuStreamUpdateCaptureDependencies(stream_, nullptr, nullptr, 0,
                                              CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  ASSERT_CU(cuStreamEndCapture(stream_, &ended));
  EXPECT_EQ(ended, captured);
  EXPECT_EQ(cuStreamUpdateCaptureDependencies(stream_, &made, nullptr, 1, 0),
            CUDA_ERROR_ILLEGAL_STATE);
  run(ended);
  EXPECT_EQ(counter, 12);

  // The same graph once more, after its last node.
  CUgraphNode last = nullptr;
  ASSERT_CU(cuGraphNodeGetDependentNodes(made, &last, nullptr, &(before = 1)));
  ASSERT_CU(cuStreamBeginCaptureToGraph(stream_, ended, &last, nullptr, 1,
                                        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  ASSERT_CU(cuLaunchHostFunc(stream_, add_ten, &counter));
  ASSERT_CU(cuStreamEndCapture(stream_, &captured));
  EXPECT_EQ(captured, ended);
  counter = 0;
  run(ended);
  EXPECT_EQ(counter, 22);
  ASSERT_CU(cuGraphDestroy(ended));
}

TEST_F(Graphs, AreCapturedFromStreamsThatGoBeforeTheyEnd) {
  int counter = 0;
  for (const bool is_joined : {true, false}) {
    CUstream forked = nullptr;
    CUevent event = nullptr;
    ASSERT_CU(cuStreamCreate(&forked, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(cuEventRecord(event, stream_));
    ASSERT_CU(cuStreamWaitEvent(forked, event, 0));
    ASSERT_CU(cuLaunchHostFunc(forked, count_up, &counter));
    if (is_joined) {
      ASSERT_CU(cuEventRecord(event, forked));
      ASSERT_CU(cuStreamWaitEvent(stream_, event, 0));
    }
    ASSERT_CU(cuStreamDestroy(forked));
    ASSERT_CU(cuEventDestroy(event));
    ASSERT_CU(cuLaunchHostFunc(stream_, add_ten, &counter));
    CUgraph captured = nullptr;
    const CUresult ended = cuStreamEndCapture(stream_, &captured);
    if (!is_joined) {
      EXPECT_EQ(ended, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
      continue;
    }
    ASSERT_CU(ended);
    run(captured);
    EXPECT_EQ(counter, 11);
    ASSERT_CU(cuGraphDestroy(captured));
  }
}

TEST_F(Graphs, HoldCollectivesAndTakeOthersInTheirPlace) {
  constexpr size_t kCount = 1000;
  std::array<ncclComm_t, 2> comms{};
  const int devices[] = {0, 1};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, devices));
  std::array<CUstream, 2> streams{stream_, nullptr};
  std::array<std::array<CUdeviceptr, 2>, 2> buffers{};  // of a set, of a rank
  CUevent fork = nullptr, join = nullptr;
  CUcontext second = nullptr;
  ASSERT_CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  for (auto& set : buffers) ASSERT_CU(cuMemAlloc(&set[0], kCount * 4));
  ASSERT_CU(cuDevicePrimaryCtxRetain(&second, 1));
  ASSERT_CU(cuCtxPushCurrent(second));
  ASSERT_CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  ASSERT_CU(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
  for (auto& set : buffers) ASSERT_CU(cuMemAlloc(&set[1], kCount * 4));
  ASSERT_CU(cuCtxPopCurrent(nullptr));

  std::array<CUgraph, 2> graphs{};
  for (size_t set = 0; set < 2; ++set) {
    ASSERT_CU(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(cuEventRecord(fork, stream_));
    ASSERT_CU(cuStreamWaitEvent(streams[1], fork, 0));
    ASSERT_NCCL(ncclGroupStart());
    for (size_t rank = 0; rank < 2; ++rank) {
      void* const buffer = reinterpret_cast<void*>(buffers[set][rank]);
      ASSERT_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclInt32, ncclSum, comms[rank],
                                reinterpret_cast<cudaStream_t>(streams[rank])));
    }
    ASSERT_NCCL(ncclGroupEnd());
    ASSERT_CU(cuEventRecord(join, streams[1]));
    ASSERT_CU(cuStreamWaitEvent(stream_, join, 0));
    ASSERT_CU(cuStreamEndCapture(stream_, &graphs[set]));
    for (CUdeviceptr buffer : buffers[set]) ASSERT_CU(cuMemsetD32(buffer, 21, kCount));
  }
  const CUgraphExec executable = instantiate(graphs[0]);
  const auto value = [&](size_t set, size_t rank) {
    uint32_t word = 0;
    EXPECT_EQ(cuMemcpyDtoH(&word, buffers[set][rank] + (kCount - 1) * 4, 4), CUDA_SUCCESS);
    return word;
  };
  launch(executable);
  CUgraphExecUpdateResultInfo info{};
  ASSERT_CU(cuGraphExecUpdate(executable, graphs[1], &info));
  launch(executable);
  launch(executable);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(value(0, rank), 42u);
    EXPECT_EQ(value(1, rank), 84u) << "the other set, twice";
  }
  ASSERT_CU(cuGraphExecDestroy(executable));
  for (CUgraph graph : graphs) ASSERT_CU(cuGraphDestroy(graph));
  for (ncclComm_t comm : comms) ASSERT_NCCL(ncclCommDestroy(comm));
  for (const auto& set : buffers)
    for (CUdeviceptr buffer : set) ASSERT_CU(cuMemFree(buffer));
  ASSERT_CU(cuStreamDestroy(streams[1]));
  ASSERT_CU(cuEventDestroy(fork));
  ASSERT_CU(cuEventDestroy(join));
  ASSERT_CU(cuDevicePrimaryCtxRelease(1));
}

}  // namespace
