// The CUDA Runtime as a program sees it: compiled against vcuda's headers and linked with its
// library, nothing else.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

#define CUDA(...) ASSERT_EQ(__VA_ARGS__, cudaSuccess)
#define EXPECT_CUDA(expected, ...)           \
  do {                                       \
    EXPECT_EQ(__VA_ARGS__, expected);        \
    EXPECT_EQ(cudaGetLastError(), expected); \
  } while (false)

constexpr int kWords = 5000;

std::vector<int> pattern(int seed) {
  std::vector<int> words(kWords);
  for (int i = 0; i < kWords; ++i) words[static_cast<size_t>(i)] = seed * 1000003 + i;
  return words;
}

// Holds a stream until the test lets it go on.
struct Gate {
  std::atomic<bool> is_open{false};
  std::atomic<bool> reached{false};
  static void pass(void* data) {
    auto* gate = static_cast<Gate*>(data);
    gate->reached = true;
    while (!gate->is_open) std::this_thread::yield();
  }
};

void increment(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

TEST(Runtime, VersionsAreThoseOfTheHeaders) {
  int version = 0;
  CUDA(cudaRuntimeGetVersion(&version));
  EXPECT_EQ(version, CUDART_VERSION);
  CUDA(cudaDriverGetVersion(&version));
  EXPECT_EQ(version, CUDART_VERSION);
}

TEST(Runtime, ErrorsHaveNamesAndStayUntilAsked) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorStreamCaptureUnjoined), "cudaErrorStreamCaptureUnjoined");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  std::thread([] { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Runtime, DevicesDescribeThemselves) {
  int count = 0;
  CUDA(cudaGetDeviceCount(&count));
  ASSERT_GE(count, 2);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp prop;
    CUDA(cudaGetDeviceProperties(&prop, device));
    EXPECT_STREQ(prop.name, "Virtual GPU");
    int major = 0;
    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    EXPECT_EQ(major, prop.major);
    char bus[32];
    CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    int found = -1;
    CUDA(cudaDeviceGetByPCIBusId(&found, bus));
    EXPECT_EQ(found, device);
    EXPECT_CUDA(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(bus, 5, device));
  }
  cudaDeviceProp prop;
  EXPECT_CUDA(cudaErrorInvalidDevice, cudaGetDeviceProperties(&prop, count));
}

TEST(Runtime, EachThreadHasItsCurrentDevice) {
  CUDA(cudaSetDevice(1));
  std::thread([] {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  int device = -1;
  CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 1);
  CUDA(cudaSetDevice(0));
}

TEST(Runtime, PeerAccessIsAskedForOnce) {
  int can = 0;
  CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  CUDA(cudaDeviceCanAccessPeer(&can, 1, 1));
  EXPECT_EQ(can, 0);
  CUDA(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_CUDA(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  CUDA(cudaDeviceDisablePeerAccess(1));
  EXPECT_CUDA(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
}

TEST(Runtime, CopiesGoThereAndBack) {
  int* device = nullptr;
  CUDA(cudaMalloc(&device, kWords * sizeof(int)));
  const std::vector<int> sent = pattern(1);
  std::vector<int> received(kWords, -1);
  CUDA(cudaMemcpy(device, sent.data(), kWords * sizeof(int), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(received.data(), device, kWords * sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT_EQ(received, sent);
  EXPECT_CUDA(cudaErrorInvalidValue,
              cudaMemcpy(device, sent.data(), kWords * sizeof(int) + 1, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaErrorInvalidValue,
              cudaMemcpy(received.data(), device, 4, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaErrorInvalidMemcpyDirection,
              cudaMemcpy(device, device, 4, static_cast<cudaMemcpyKind>(7)));
  CUDA(cudaFree(device));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFree(device));
  CUDA(cudaFree(nullptr));
}

TEST(Runtime, PageableMemoryMayBeReusedAtOnce) {
  // The stream is held, so the copy has not been made when the source changes.
  int* device = nullptr;
  CUDA(cudaMalloc(&device, kWords * sizeof(int)));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  Gate gate;
  CUDA(cudaLaunchHostFunc(stream, &Gate::pass, &gate));
  std::vector<int> words = pattern(2);
  CUDA(cudaMemcpyAsync(device, words.data(), kWords * sizeof(int), cudaMemcpyHostToDevice, stream));
  words.assign(kWords, -1);
  gate.is_open = true;
  CUDA(cudaMemcpyAsync(words.data(), device, kWords * sizeof(int), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(words,
            pattern(2));  // without a synchronization: pageable targets are complete on return
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFree(device));
}

TEST(Runtime, TwoDimensionalCopiesKeepThePadding) {
  char* device = nullptr;
  size_t pitch = 0;
  CUDA(cudaMallocPitch(&device, &pitch, 100, 7));
  EXPECT_GE(pitch, 100u);
  CUDA(cudaMemset(device, 9, pitch * 7));
  std::vector<char> rows(100 * 7);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<char>(i);
  CUDA(cudaMemcpy2D(device, pitch, rows.data(), 100, 100, 7, cudaMemcpyHostToDevice));
  std::vector<char> all(pitch * 7);
  CUDA(cudaMemcpy(all.data(), device, all.size(), cudaMemcpyDeviceToHost));
  for (size_t row = 0; row < 7; ++row) {
    for (size_t i = 0; i < pitch; ++i)
      ASSERT_EQ(all[row * pitch + i], i < 100 ? rows[row * 100 + i] : 9) << row << ' ' << i;
  }
  EXPECT_CUDA(cudaErrorInvalidPitchValue,
              cudaMemcpy2D(device, 99, rows.data(), 100, 100, 7, cudaMemcpyHostToDevice));
  CUDA(cudaFree(device));
}

TEST(Runtime, CopiesOfMoreBytesThanANumberCanSayAreRefused) {
  constexpr size_t kHuge = size_t{1} << 32;  // squared it is 0
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, 64));
  EXPECT_CUDA(cudaErrorInvalidValue,
              cudaMemcpy2D(memory, kHuge, memory, kHuge, kHuge, kHuge, cudaMemcpyDeviceToDevice));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaMemset2D(memory, kHuge, 0, kHuge, kHuge));
  CUDA(cudaFree(memory));
}

TEST(Runtime, PointersTellWhatTheyAre) {
  void* device = nullptr;
  void* host = nullptr;
  void* managed = nullptr;
  std::vector<char> registered(100);
  CUDA(cudaSetDevice(1));
  CUDA(cudaMalloc(&device, 100));
  CUDA(cudaMallocHost(&host, 100));
  CUDA(cudaMallocManaged(&managed, 100));
  CUDA(cudaHostRegister(registered.data(), 100, cudaHostRegisterDefault));
  const struct {
    void* pointer;
    cudaMemoryType type;
  } cases[] = {{device, cudaMemoryTypeDevice},
               {host, cudaMemoryTypeHost},
               {managed, cudaMemoryTypeManaged},
               {registered.data(), cudaMemoryTypeHost},
               {&device, cudaMemoryTypeUnregistered}};
  for (const auto& c : cases) {
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, c.pointer));
    EXPECT_EQ(attributes.type, c.type);
    if (c.type == cudaMemoryTypeDevice) {
      EXPECT_EQ(attributes.device, 1);
    }
  }
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFree(host));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFreeHost(device));
  CUDA(cudaHostUnregister(registered.data()));
  EXPECT_CUDA(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(registered.data()));
  CUDA(cudaFree(device));
  CUDA(cudaFree(managed));
  CUDA(cudaFreeHost(host));
  CUDA(cudaSetDevice(0));
}

TEST(Runtime, MemoryInfoFollowsAllocations) {
  size_t before = 0;
  size_t during = 0;
  size_t total = 0;
  void* memory = nullptr;
  CUDA(cudaMemGetInfo(&before, &total));
  CUDA(cudaMalloc(&memory, 1 << 20));
  CUDA(cudaMemGetInfo(&during, &total));
  EXPECT_EQ(before - during, size_t{1} << 20);
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&memory, size_t{1} << 50));
  EXPECT_EQ(memory, nullptr);
}

TEST(Runtime, StreamOrderedMemoryGoesBackInTheStreamsOrder) {
  size_t before = 0;
  size_t now = 0;
  size_t total = 0;
  cudaStream_t stream;
  int* memory = nullptr;
  Gate gate;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMemGetInfo(&before, &total));
  CUDA(cudaMallocAsync(&memory, 4096, stream));
  CUDA(cudaLaunchHostFunc(stream, &Gate::pass, &gate));
  CUDA(cudaMemsetAsync(memory, 1, 4096, stream));
  CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before - now, 4096u);
  gate.is_open = true;
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before, now);
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, StreamsKeepTheirProperties) {
  cudaStream_t stream;
  unsigned int flags = 9;
  int value = 9;
  int least = 9;
  int greatest = 9;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_GT(least, greatest);
  CUDA(cudaSetDevice(1));
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamGetFlags(stream, &flags));
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  CUDA(cudaStreamGetPriority(stream, &value));
  EXPECT_EQ(value, greatest);
  CUDA(cudaStreamGetDevice(stream, &value));
  EXPECT_EQ(value, 1);
  CUDA(cudaStreamSynchronize(stream));  // of a device that is not current
  CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 8));
}

TEST(Runtime, BlockingStreamsAndTheLegacyStreamTakeTurns) {
  cudaStream_t blocking;
  cudaStream_t free_running;
  int* words = nullptr;
  CUDA(cudaMallocHost(&words, 16));
  CUDA(cudaStreamCreate(&blocking));
  CUDA(cudaStreamCreateWithFlags(&free_running, cudaStreamNonBlocking));
  Gate gate;
  CUDA(cudaLaunchHostFunc(blocking, &Gate::pass, &gate));
  CUDA(cudaMemsetAsync(words, 1, 4, blocking));
  CUDA(cudaMemsetAsync(words, 2, 4, nullptr));   // waits for `blocking`
  CUDA(cudaMemsetAsync(words, 3, 4, blocking));  // waits for the legacy stream
  CUDA(cudaMemsetAsync(words + 1, 4, 4, free_running));
  CUDA(cudaStreamSynchronize(free_running));  // waits for nobody
  EXPECT_EQ(words[0], 0);
  EXPECT_EQ(words[1], 0x04040404);
  EXPECT_EQ(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.is_open = true;
  CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(words[0], 0x03030303);
  CUDA(cudaStreamDestroy(blocking));
  CUDA(cudaStreamDestroy(free_running));
  CUDA(cudaFreeHost(words));
}

TEST(Runtime, NamedDefaultStreamsAreThoseOfCuda) {
  unsigned long long null = 0;
  unsigned long long legacy = 0;
  unsigned long long mine = 0;
  unsigned long long others = 0;
  unsigned int flags = 7;
  CUDA(cudaStreamGetId(nullptr, &null));
  CUDA(cudaStreamGetId(cudaStreamLegacy, &legacy));
  CUDA(cudaStreamGetId(cudaStreamPerThread, &mine));
  std::thread([&] { CUDA(cudaStreamGetId(cudaStreamPerThread, &others)); }).join();
  EXPECT_EQ(null, legacy);
  EXPECT_NE(mine, legacy);
  EXPECT_NE(mine, others);
  CUDA(cudaStreamGetFlags(cudaStreamPerThread, &flags));
  EXPECT_EQ(flags, static_cast<unsigned int>(cudaStreamDefault));

  // The legacy stream waits for each thread's default stream, and they for it.
  std::vector<int> order;
  const auto note = [&order](cudaStream_t stream, int value) {
    struct Note {
      std::vector<int>* order;
      int value;
    };
    CUDA(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const std::unique_ptr<Note> taken(static_cast<Note*>(data));
          taken->order->push_back(taken->value);
        },
        new Note{&order, value}));
  };
  note(cudaStreamPerThread, 1);
  note(cudaStreamLegacy, 2);
  std::thread([&] { note(cudaStreamPerThread, 3); }).join();
  note(nullptr, 4);
  note(cudaStreamPerThread, 5);
  CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT_EQ(order, std::vector<int>({1, 2, 3, 4, 5}));
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported,
              cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed));
}

TEST(Runtime, CallbacksGetTheirStream) {
  struct Call {
    cudaStream_t stream = nullptr;
    cudaError_t status = cudaErrorUnknown;
  } call;
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const auto callback = [](cudaStream_t given, cudaError_t status, void* data) {
    *static_cast<Call*>(data) = {given, status};
  };
  CUDA(cudaStreamAddCallback(stream, callback, &call, 0));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(call.stream, stream);
  EXPECT_EQ(call.status, cudaSuccess);
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, EventsAnswer) {
  cudaStream_t stream;
  cudaEvent_t start;
  cudaEvent_t stop;
  float milliseconds = -1;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&stop, cudaEventBlockingSync));
  Gate gate;
  CUDA(cudaEventRecord(start, stream));
  CUDA(cudaLaunchHostFunc(stream, &Gate::pass, &gate));
  CUDA(cudaEventRecord(stop, stream));
  EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(stop));
  EXPECT_CUDA(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, start, stop));
  gate.is_open = true;
  CUDA(cudaEventSynchronize(stop));
  CUDA(cudaEventQuery(stop));
  CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
  EXPECT_GE(milliseconds, 0);
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(stop));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventRecord(stop, stream));
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, GraphsAreCapturedAndReplayed) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  size_t nodes = 0;
  std::atomic<int> calls{0};
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(cudaStreamGetCaptureInfo(stream, &status, &id));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0u);
  CUDA(cudaLaunchHostFunc(stream, &increment, &calls));
  CUDA(cudaLaunchHostFunc(stream, &increment, &calls));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 10; ++i) CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(calls, 20);

  // A graph is not launched into a capture.
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(calls, 20);
  CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, GraphsAreMadeByHand) {
  cudaGraph_t graph, clone;
  cudaGraphExec_t executable;
  cudaStream_t stream;
  void* memory = nullptr;
  std::vector<int> host(6, -1);
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMalloc(&memory, 6 * sizeof(int)));
  CUDA(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t fill, copy, after;
  cudaMemsetParams rows{};
  rows.dst = memory;
  rows.pitch = 3 * sizeof(int);
  rows.value = 7;
  rows.elementSize = 4;
  rows.width = rows.height = 2;
  CUDA(cudaMemset(memory, 0, 6 * sizeof(int)));
  CUDA(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &rows));
  CUDA(cudaGraphAddMemcpyNode1D(&copy, graph, &fill, 1, host.data(), memory, 6 * sizeof(int),
                                cudaMemcpyDeviceToHost));
  cudaGraphNodeParams call{};
  call.type = cudaGraphNodeTypeHost;
  call.host.fn = [](void* data) { ++static_cast<std::vector<int>*>(data)->front(); };
  call.host.userData = &host;
  CUDA(cudaGraphAddNode(&after, graph, &copy, nullptr, 1, &call));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(host, (std::vector<int>{8, 7, 0, 7, 7, 0}));

  CUDA(cudaGraphClone(&clone, graph));
  cudaGraphExecUpdateResultInfo info;
  CUDA(cudaGraphExecUpdate(executable, clone, &info));
  CUDA(cudaGraphDestroyNode(after));
  EXPECT_CUDA(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, graph, &info));
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_CUDA(cudaErrorInvalidValue, cudaGraphDestroyNode(after));
  size_t nodes = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaGraphDestroyNode(copy));  // gone with its graph
  CUDA(cudaGraphDestroy(clone));
  CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, ExternalEventsAreNodesOfGraphs) {
  cudaStream_t stream;
  cudaStream_t live;
  cudaEvent_t before;
  cudaEvent_t after;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  size_t nodes = 0;
  std::atomic<int> calls{0};
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&live, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&after, cudaEventDisableTiming));
  EXPECT_CUDA(cudaErrorIllegalState,
              cudaEventRecordWithFlags(after, stream, cudaEventRecordExternal));
  EXPECT_CUDA(cudaErrorIllegalState, cudaStreamWaitEvent(stream, before, cudaEventWaitExternal));
  CUDA(cudaEventRecord(before, live));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(cudaStreamWaitEvent(stream, before, cudaEventWaitExternal));  // no work from outside
  CUDA(cudaLaunchHostFunc(stream, &increment, &calls));
  CUDA(cudaEventRecordWithFlags(after, stream, cudaEventRecordExternal));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphDestroy(graph));

  std::atomic<bool> proceed{false};
  CUDA(cudaLaunchHostFunc(
      live,
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
      },
      &proceed));
  CUDA(cudaEventRecord(before, live));
  CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(after));
  EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(stream));
  proceed = true;
  CUDA(cudaEventSynchronize(after));
  EXPECT_EQ(calls, 1);
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaEventDestroy(before));
  CUDA(cudaEventDestroy(after));
  CUDA(cudaStreamDestroy(live));
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, AllocatingDuringAGlobalCaptureInvalidatesIt) {
  cudaStream_t stream;
  cudaGraph_t graph;
  void* memory = nullptr;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  std::thread([&] {
    EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 16));
  }).join();
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));

  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  std::thread([&] {
    EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }).join();
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
}

TEST(Runtime, UserObjectsLiveAsLongAsTheLastHolder) {
  std::atomic<int> destroyed{0};
  cudaUserObject_t object;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaUserObjectCreate(&object, &destroyed, &increment, 2, cudaUserObjectNoDestructorSync));
  CUDA(cudaGraphCreate(&graph, 0));
  CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaUserObjectRelease(object, 2));  // one has moved
  CUDA(cudaUserObjectRetain(object, 3));
  CUDA(cudaUserObjectRelease(object, 4));
  CUDA(cudaGraphDestroy(graph));
  EXPECT_EQ(destroyed, 0);
  CUDA(cudaGraphExecDestroy(executable));
  EXPECT_EQ(destroyed, 1);
  EXPECT_CUDA(cudaErrorInvalidValue, cudaUserObjectRetain(object));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaUserObjectCreate(&object, nullptr, &increment, 1, 0));
}

TEST(Runtime, UsersKernelsAreRefused) {
  EXPECT_CUDA(cudaErrorNotSupported,
              cudaLaunchKernel(&increment, dim3(1), dim3(2, 3), nullptr, 0, nullptr));
}

std::string hex_of(const cudaIpcMemHandle_t& handle) {
  std::string text;
  for (const char c : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

// Runs in the child that the next test starts.
TEST(Runtime, DISABLED_IpcChild) {
  const char* text = std::getenv("VCUDA_TEST_HANDLE");
  ASSERT_NE(text, nullptr);
  cudaIpcMemHandle_t handle;
  for (size_t i = 0; i < sizeof handle; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
  int* memory = nullptr;
  CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&memory), handle,
                            cudaIpcMemLazyEnablePeerAccess));
  std::vector<int> words(kWords);
  CUDA(cudaMemcpy(words.data(), memory, kWords * sizeof(int), cudaMemcpyDeviceToHost));
  ASSERT_EQ(words, pattern(7));
  CUDA(cudaMemcpy(memory, pattern(8).data(), kWords * sizeof(int), cudaMemcpyHostToDevice));
  CUDA(cudaIpcCloseMemHandle(memory));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcCloseMemHandle(memory));
}

TEST(Runtime, AnotherProcessOpensMemoryByItsHandle) {
  int* before = nullptr;  // so that the memory does not begin at the start of its file
  int* memory = nullptr;
  CUDA(cudaMalloc(&before, 100));
  CUDA(cudaMalloc(&memory, kWords * sizeof(int)));
  CUDA(cudaMemcpy(memory, pattern(7).data(), kWords * sizeof(int), cudaMemcpyHostToDevice));
  cudaIpcMemHandle_t handle;
  CUDA(cudaIpcGetMemHandle(&handle, memory));
  const std::string text = "VCUDA_TEST_HANDLE=" + hex_of(handle);
  std::vector<char*> environment{const_cast<char*>(text.c_str())};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  char name[] = "/proc/self/exe";
  char disabled[] = "--gtest_also_run_disabled_tests";
  char filter[] = "--gtest_filter=Runtime.DISABLED_IpcChild";
  char* arguments[] = {name, disabled, filter, nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, name, nullptr, nullptr, arguments, environment.data()), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::vector<int> words(kWords);
  CUDA(cudaMemcpy(words.data(), memory, kWords * sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT_EQ(words, pattern(8));
  CUDA(cudaFree(before));
  CUDA(cudaFree(memory));
}

TEST(Runtime, MadeUpIpcHandlesAreRefused) {
  cudaIpcMemHandle_t handle;
  std::memset(&handle, 0x5a, sizeof handle);
  void* memory = nullptr;
  EXPECT_CUDA(cudaErrorInvalidValue,
              cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  int local = 0;
  EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, &local));
}

}  // namespace
