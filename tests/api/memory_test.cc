// ncclMemAlloc and ncclCommRegister as programs call them.
#include <thread>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

TEST(MemAlloc, MemoryIsZeroAndOfTheCurrentDevice) {
  for (const int device : {0, 3}) {
    ASSERT_CUDA(cudaSetDevice(device));
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, kBytes + 1));
    cudaPointerAttributes attributes;
    ASSERT_CUDA(cudaPointerGetAttributes(&attributes, memory));
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQ(attributes.device, device);
    EXPECT_EQ(attributes.devicePointer, memory);
    std::vector<unsigned char> bytes(kBytes + 1, 1);
    ASSERT_CUDA(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(bytes, std::vector<unsigned char>(bytes.size(), 0));
    ASSERT_CUDA(cudaMemset(memory, 7, kBytes));
    ASSERT_NCCL(ncclMemFree(memory));
    ASSERT_CUDA(cudaPointerGetAttributes(&attributes, memory));
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  }
}

TEST(MemAlloc, NothingIsNullAndFreed) {
  void* memory = &memory;
  ASSERT_NCCL(ncclMemAlloc(&memory, 0));
  EXPECT_EQ(memory, nullptr);
  ASSERT_NCCL(ncclMemFree(nullptr));
}

TEST(MemAlloc, WhatCannotBeIsACudaError) {
  void* memory = &memory;
  EXPECT_EQ(ncclMemAlloc(nullptr, 16), ncclUnhandledCudaError);
  EXPECT_EQ(ncclMemAlloc(&memory, SIZE_MAX / 2), ncclUnhandledCudaError);
  EXPECT_EQ(memory, nullptr);
}

TEST(MemFree, RefusesWhatItDidNotAllocate) {
  ASSERT_CUDA(cudaSetDevice(0));
  void* mine = nullptr;
  void* others = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&mine, kBytes));
  ASSERT_CUDA(cudaMalloc(&others, kBytes));
  EXPECT_EQ(ncclMemFree(others), ncclUnhandledCudaError);
  EXPECT_EQ(ncclMemFree(static_cast<char*>(mine) + 1), ncclUnhandledCudaError);
  EXPECT_EQ(ncclMemFree(&mine), ncclUnhandledCudaError);
  // And the other way round.
  EXPECT_EQ(cudaFree(mine), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_CUDA(cudaFree(others));
  EXPECT_NCCL(ncclMemFree(mine));
  EXPECT_EQ(ncclMemFree(mine), ncclUnhandledCudaError);
}

TEST(MemAlloc, CollectivesRunOnIt) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 100'003;
  Cluster cluster(kRanks);
  std::vector<float*> memory(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[size_t(rank)]), kCount * 4));
    const std::vector<float> values(kCount, static_cast<float>(rank + 1));
    ASSERT_CUDA(
        cudaMemcpy(memory[size_t(rank)], values.data(), kCount * 4, cudaMemcpyHostToDevice));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    float* const buffer = memory[size_t(rank)];
    ASSERT_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, cluster.comm(rank),
                              cluster.stream(rank)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<float> values(kCount);
    // Waits for the stream's work: freeing does, too.
    ASSERT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
    ASSERT_CUDA(
        cudaMemcpy(values.data(), memory[size_t(rank)], kCount * 4, cudaMemcpyDeviceToHost));
    EXPECT_EQ(values, std::vector<float>(kCount, 10)) << rank;
    ASSERT_NCCL(ncclMemFree(memory[size_t(rank)]));
  }
}

TEST(Register, CountsAndRefusesWhatHasEnded) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, kBytes);
  void* handle = nullptr;
  void* part = nullptr;
  ASSERT_NCCL(ncclCommRegister(cluster.comm(0), buffer.data(), kBytes, &handle));
  ASSERT_NE(handle, nullptr);
  ASSERT_NCCL(ncclCommRegister(cluster.comm(0), buffer.data() + 4096, 4096, &part));
  EXPECT_EQ(part, handle);
  EXPECT_EQ(ncclCommDeregister(cluster.comm(1), handle), ncclInvalidUsage);
  ASSERT_NCCL(ncclCommDeregister(cluster.comm(0), handle));
  ASSERT_NCCL(ncclCommDeregister(cluster.comm(0), handle));
  EXPECT_EQ(ncclCommDeregister(cluster.comm(0), handle), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("rank 0"), std::string::npos);
  ASSERT_NCCL(ncclCommDeregister(cluster.comm(0), nullptr));
}

TEST(Register, TakesWhatProgramsPass) {
  Cluster cluster(1);
  int local = 0;
  void* handle = &local;
  ASSERT_NCCL(ncclCommRegister(cluster.comm(0), &local, sizeof local, &handle));
  EXPECT_EQ(handle, nullptr);
  handle = &local;
  ASSERT_NCCL(ncclCommRegister(cluster.comm(0), nullptr, 0, &handle));
  EXPECT_EQ(handle, nullptr);
  void* host = nullptr;
  ASSERT_CUDA(cudaMallocHost(&host, kBytes));
  ASSERT_NCCL(ncclCommRegister(cluster.comm(0), host, kBytes, &handle));
  EXPECT_NE(handle, nullptr);  // ends with the communicator
  ASSERT_CUDA(cudaFreeHost(host));
  EXPECT_EQ(ncclCommRegister(cluster.comm(0), &local, 4, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommRegister(nullptr, &local, 4, &handle), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDeregister(nullptr, nullptr), ncclInvalidArgument);
}

// As an allocator's hook does, while another thread captures.
TEST(Register, WorksFromOtherThreadsDuringACapture) {
  Cluster cluster(1);
  DeviceBuffer buffer(0, kBytes);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(0), cudaStreamCaptureModeGlobal));
  const auto register_it = [&] {
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(cluster.comm(0), buffer.data(), kBytes, &handle));
    EXPECT_NCCL(ncclCommDeregister(cluster.comm(0), handle));
  };
  register_it();
  std::thread(register_it).join();
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(0), &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace niccolite::test
