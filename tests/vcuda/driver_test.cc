// libcuda.so.1 of virtual GPUs, as a program sees it that was compiled with NVIDIA's header: the
// types and the versions of functions are the header's.
#include "driver_fixture.h"

#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

TEST_F(Driver, DescribesItsDevices) {
  int version = 0, count = 0, major = 0;
  ASSERT_CU(cuDriverGetVersion(&version));
  EXPECT_GE(version, 13000);
  ASSERT_CU(cuDeviceGetCount(&count));
  EXPECT_GE(count, 2);
  char name[64] = {};
  ASSERT_CU(cuDeviceGetName(name, sizeof name, 1));
  EXPECT_NE(std::string(name).find("Virtual"), std::string::npos);
  CUuuid first{}, second{};
  ASSERT_CU(cuDeviceGetUuid(&first, 0));
  ASSERT_CU(cuDeviceGetUuid(&second, 1));
  EXPECT_NE(std::string(first.bytes, 16), std::string(second.bytes, 16));
  size_t bytes = 0;
  ASSERT_CU(cuDeviceTotalMem(&bytes, 0));
  EXPECT_GT(bytes, size_t{1} << 20);
  ASSERT_CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(major, 9);
  for (const auto& [attribute, expected] :
       {std::pair{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0},
        {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1}}) {
    int value = -1;
    ASSERT_CU(cuDeviceGetAttribute(&value, attribute, 0));
    EXPECT_EQ(value, expected) << attribute;
  }
  EXPECT_EQ(cuDeviceGet(&device_, 1000), CUDA_ERROR_INVALID_DEVICE);
  device_ = 0;
  const char* text = nullptr;
  ASSERT_CU(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_NE(std::string(text), "");
}

TEST_F(Driver, KeepsAStackOfContextsForEachThread) {
  CUcontext second = nullptr, found = nullptr;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&second, 1));
  ASSERT_CU(cuCtxPushCurrent(second));
  CUdevice device = -1;
  ASSERT_CU(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  std::thread([&] {
    EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT) << "a thread begins with none";
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  ASSERT_CU(cuCtxPopCurrent(&found));
  EXPECT_EQ(found, second);
  ASSERT_CU(cuCtxGetCurrent(&found));
  EXPECT_EQ(found, context_);
  ASSERT_CU(cuDevicePrimaryCtxRelease(1));
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSetCurrent(reinterpret_cast<CUcontext>(this)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Driver, MovesAndFillsMemory) {
  constexpr size_t kCount = 1000;
  CUdeviceptr memory = 0, whole = 0;
  ASSERT_CU(cuMemAlloc(&memory, kCount * 4));
  ASSERT_CU(cuMemsetD32(memory, 0x01020304, kCount));
  std::vector<uint32_t> host(kCount);
  ASSERT_CU(cuMemcpyDtoH(host.data(), memory, kCount * 4));
  EXPECT_EQ(host, std::vector<uint32_t>(kCount, 0x01020304));
  ASSERT_CU(cuMemsetD16(memory + 2, 7, 1));
  ASSERT_CU(cuMemcpyDtoH(host.data(), memory, 4));
  EXPECT_EQ(host[0], 0x00070304u);
  EXPECT_EQ(cuMemsetD32(memory + 1, 1, 1), CUDA_ERROR_INVALID_VALUE) << "not aligned";

  size_t bytes = 0;
  ASSERT_CU(cuMemGetAddressRange(&whole, &bytes, memory + 100));
  EXPECT_EQ(whole, memory);
  EXPECT_GE(bytes, kCount * 4);
  CUmemorytype type{};
  int ordinal = -1;
  CUcontext owner = nullptr;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &ordinal, &owner};
  ASSERT_CU(cuPointerGetAttributes(3, attributes, values, memory));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(owner, context_);
  int on_stack = 0;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  reinterpret_cast<CUdeviceptr>(&on_stack)),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemFree(memory));
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE) << "freed twice";
}

TEST_F(Driver, AllocatesFromPoolsInTheOrderOfAStream) {
  CUmemoryPool pool = nullptr, made = nullptr;
  ASSERT_CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  ASSERT_CU(cuMemPoolCreate(&made, &properties));
  uint64_t threshold = 12345, read = 0;
  ASSERT_CU(cuMemPoolSetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  ASSERT_CU(cuMemPoolGetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &read));
  EXPECT_EQ(read, threshold);
  CUstream stream = nullptr;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (CUmemoryPool from : {pool, made}) {
    CUdeviceptr memory = 0;
    ASSERT_CU(cuMemAllocFromPoolAsync(&memory, 4096, from, stream));
    ASSERT_CU(cuMemsetD8Async(memory, 5, 4096, stream));
    unsigned char last = 0;
    ASSERT_CU(cuMemcpyDtoHAsync(&last, memory + 4095, 1, stream));
    ASSERT_CU(cuMemFreeAsync(memory, stream));
    ASSERT_CU(cuStreamSynchronize(stream));
    EXPECT_EQ(last, 5);
  }
  ASSERT_CU(cuMemPoolDestroy(made));
  EXPECT_EQ(cuMemPoolDestroy(made), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuStreamDestroy(stream));
}

TEST_F(Driver, SharesPools) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  CUmemoryPool pool = nullptr, imported = nullptr, usual = nullptr, chosen = nullptr;
  ASSERT_CU(cuMemPoolCreate(&pool, &properties));
  ASSERT_CU(cuDeviceGetDefaultMemPool(&usual, 1));
  int descriptor = -1, none = -1;
  constexpr auto kType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ASSERT_CU(cuMemPoolExportToShareableHandle(&descriptor, pool, kType, 0));
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&none, usual, kType, 0), CUDA_ERROR_INVALID_VALUE);
  const auto handle = [](int of) { return reinterpret_cast<void*>(intptr_t{of}); };
  ASSERT_CU(cuMemPoolImportFromShareableHandle(&imported, handle(descriptor), kType, 0));
  ASSERT_EQ(close(descriptor), 0);
  EXPECT_EQ(cuMemPoolImportFromShareableHandle(&imported, handle(-1), kType, 0),
            CUDA_ERROR_INVALID_VALUE);

  CUstream stream = nullptr;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0, same = 0, plain = 0;
  ASSERT_CU(cuMemAllocFromPoolAsync(&memory, 4096, pool, stream));
  ASSERT_CU(cuMemAlloc(&plain, 4096));
  CUmemoryPool owner = nullptr;
  int ordinal = -1;
  ASSERT_CU(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  ASSERT_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
  EXPECT_EQ(owner, pool);
  EXPECT_EQ(ordinal, 1) << "the pool's device, whoever's the stream is";
  CUmemPoolPtrExportData data;
  EXPECT_EQ(cuMemPoolExportPointer(&data, plain), CUDA_ERROR_INVALID_VALUE) << "of no pool";
  ASSERT_CU(cuMemPoolExportPointer(&data, memory));
  EXPECT_EQ(cuMemPoolImportPointer(&same, pool, &data), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemPoolImportPointer(&same, imported, &data));
  EXPECT_NE(same, memory);
  unsigned char byte = 0;
  ASSERT_CU(cuMemsetD8Async(memory, 6, 4096, stream));
  ASSERT_CU(cuMemcpyDtoHAsync(&byte, same + 4095, 1, stream));
  ASSERT_CU(cuStreamSynchronize(stream));
  EXPECT_EQ(byte, 6);
  ASSERT_CU(cuMemFreeAsync(same, stream));
  ASSERT_CU(cuMemPoolImportPointer(&same, imported, &data));
  ASSERT_CU(cuMemFree(same));
  EXPECT_EQ(cuMemFree(same), CUDA_ERROR_INVALID_VALUE) << "freed twice";
  EXPECT_EQ(cuMemAllocFromPoolAsync(&same, 4096, imported, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemFreeAsync(memory, stream));

  ASSERT_CU(cuDeviceSetMemPool(1, pool));
  ASSERT_CU(cuDeviceGetMemPool(&chosen, 1));
  EXPECT_EQ(chosen, pool);
  EXPECT_EQ(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE) << "of another device";
  ASSERT_CU(cuMemPoolDestroy(pool));
  ASSERT_CU(cuDeviceGetMemPool(&chosen, 1));
  EXPECT_EQ(chosen, usual);
  ASSERT_CU(cuMemPoolDestroy(imported));
  ASSERT_CU(cuMemFree(plain));
  ASSERT_CU(cuStreamDestroy(stream));
}

TEST_F(Driver, OrdersStreamsByEventsAndReplaysGraphs) {
  CUstream first = nullptr, second = nullptr;
  CUevent event = nullptr;
  ASSERT_CU(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, -1));
  ASSERT_CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
  int order = 0, seen = 0;
  struct Note {
    int* order;
    int* seen;
  } note{&order, &seen};
  ASSERT_CU(cuLaunchHostFunc(
      first, [](void* data) { ++*static_cast<int*>(data); }, &order));
  ASSERT_CU(cuEventRecord(event, first));
  ASSERT_CU(cuStreamWaitEvent(second, event, 0));
  ASSERT_CU(cuLaunchHostFunc(
      second,
      [](void* data) { *static_cast<Note*>(data)->seen = *static_cast<Note*>(data)->order; },
      &note));
  ASSERT_CU(cuStreamSynchronize(second));
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  CUcontext of_stream = nullptr;
  ASSERT_CU(cuStreamGetCtx(second, &of_stream));
  EXPECT_EQ(of_stream, context_);

  ASSERT_CU(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  ASSERT_CU(cuStreamIsCapturing(first, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_CU(cuLaunchHostFunc(
      first, [](void* data) { ++*static_cast<int*>(data); }, &order));
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamEndCapture(first, &graph));
  CUgraphExec replays = nullptr;
  ASSERT_CU(cuGraphInstantiate(&replays, graph, 0));
  for (int i = 0; i < 3; ++i) ASSERT_CU(cuGraphLaunch(replays, first));
  ASSERT_CU(cuStreamSynchronize(first));
  EXPECT_EQ(order, 4);
  static_cast<void>(id);
  ASSERT_CU(cuGraphExecDestroy(replays));
  ASSERT_CU(cuGraphDestroy(graph));
  ASSERT_CU(cuEventDestroy(event));
  ASSERT_CU(cuStreamDestroy(first));
  ASSERT_CU(cuStreamDestroy(second));
}

TEST_F(Driver, WaitsForValuesInMemory) {
  CUstream waiting = nullptr, other = nullptr;
  ASSERT_CU(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUdeviceptr words = 0;
  uint32_t* host = nullptr;
  ASSERT_CU(cuMemAlloc(&words, 64));
  ASSERT_CU(cuMemsetD8(words, 0, 64));
  ASSERT_CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), 64, 0));
  host[0] = host[1] = 0;
  const auto on_host = reinterpret_cast<CUdeviceptr>(host);

  // More waits than any machine has workers, and each lets another stream go on.
  std::vector<CUstream> chain(64);
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_CU(cuStreamCreate(&chain[i], CU_STREAM_NON_BLOCKING));
    const auto step = static_cast<cuuint32_t>(i);
    ASSERT_CU(cuStreamWaitValue32(chain[i], words, step + 1, CU_STREAM_WAIT_VALUE_EQ));
    ASSERT_CU(cuStreamWriteValue32(chain[i], words, step + 2, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  EXPECT_EQ(cuStreamQuery(chain[0]), CUDA_ERROR_NOT_READY);
  ASSERT_CU(cuStreamWriteValue32(other, words, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  for (CUstream stream : chain) {
    ASSERT_CU(cuStreamSynchronize(stream));
    ASSERT_CU(cuStreamDestroy(stream));
  }
  uint32_t last = 0;
  ASSERT_CU(cuMemcpyDtoH(&last, words, 4));
  EXPECT_EQ(last, 65u);

  // The host's store ends a wait, too; a counter that wraps around is ahead.
  ASSERT_CU(cuStreamWaitValue32(waiting, on_host, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ));
  ASSERT_CU(cuStreamSynchronize(waiting));
  ASSERT_CU(cuStreamWaitValue64(waiting, on_host, uint64_t{1} << 40, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_EQ(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  *reinterpret_cast<volatile uint64_t*>(host) = uint64_t{1} << 40;
  ASSERT_CU(cuStreamSynchronize(waiting));
  ASSERT_CU(cuStreamWaitValue32(waiting, on_host, 6, CU_STREAM_WAIT_VALUE_AND));
  EXPECT_EQ(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  *reinterpret_cast<volatile uint32_t*>(host) = 4;
  ASSERT_CU(cuStreamSynchronize(waiting));
  *reinterpret_cast<volatile uint32_t*>(host) = 0xffff0000;
  ASSERT_CU(cuStreamWaitValue32(waiting, on_host, 0x0000ffff, CU_STREAM_WAIT_VALUE_NOR));
  EXPECT_EQ(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  *reinterpret_cast<volatile uint32_t*>(host) = 0x0fff0000;
  ASSERT_CU(cuStreamSynchronize(waiting));

  CUstreamBatchMemOpParams batch[2] = {};
  batch[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  batch[0].waitValue.address = words + 8;
  batch[0].waitValue.value64 = 5;
  batch[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  batch[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch[1].writeValue.address = words + 16;
  batch[1].writeValue.value = 77;
  ASSERT_CU(cuStreamBatchMemOp(waiting, 2, batch, 0));
  EXPECT_EQ(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  ASSERT_CU(cuStreamWriteValue64(other, words + 8, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
  ASSERT_CU(cuStreamSynchronize(waiting));
  ASSERT_CU(cuMemcpyDtoH(&last, words + 16, 4));
  EXPECT_EQ(last, 77u);

  uint32_t on_stack = 0;
  EXPECT_EQ(cuStreamWaitValue32(waiting, words + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue64(waiting, words + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(waiting, reinterpret_cast<CUdeviceptr>(&on_stack), 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(waiting, words, 1, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(waiting, words, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(waiting, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemFreeHost(host));
  ASSERT_CU(cuMemFree(words));
  ASSERT_CU(cuStreamDestroy(waiting));
  ASSERT_CU(cuStreamDestroy(other));
}

TEST_F(Driver, RefusesKernels) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Driver, GivesFunctionsByNameAndVersion) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const auto get = [&](const char* name, int version) {
    found = nullptr;
    EXPECT_EQ(cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status),
              CUDA_SUCCESS);
    return found;
  };
  EXPECT_EQ(get("cuMemAlloc", 13000), reinterpret_cast<void*>(cuMemAlloc));
  EXPECT_EQ(get("cuInit", 2000), reinterpret_cast<void*>(cuInit));
  EXPECT_NE(get("cuGetProcAddress", 11030), get("cuGetProcAddress", 12000));
  EXPECT_NE(get("cuEventElapsedTime", 12000), get("cuEventElapsedTime", 13000));
  EXPECT_NE(get("cuLaunchKernel", 13000), nullptr) << "refused, but there";
  EXPECT_EQ(get("cuNoSuchThing", 13000), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(get("cuCtxSynchronize_v2", 13000), nullptr) << "names have no version";
}

}  // namespace
