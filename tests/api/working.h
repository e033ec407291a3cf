// Whether communicators work: what each test of communicators made from others asks at its end.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {

/// Waits, with a limit, until a nonblocking communicator has settled.
inline ncclResult_t settled(ncclComm_t comm) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress && std::chrono::steady_clock::now() < limit) {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    std::this_thread::yield();
  }
  return state;
}

/// A nonblocking communicator of one rank, which has settled.
inline ncclComm_t make_nonblocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  EXPECT_NCCL(settled(comm));
  return comm;
}

/// One rank's share of an all-gather of who is where and an all-reduce, on buffers of its own.
class RankAtWork {
 public:
  static constexpr size_t kCount = 5'000;

  RankAtWork(ncclComm_t comm, int nranks)
      : comm_(comm),
        nranks_(nranks),
        device_(device_of(comm)),
        mine_(device_, sizeof(int)),
        all_(device_, static_cast<size_t>(nranks) * sizeof(int)),
        sum_(device_, kCount * sizeof(int)) {
    EXPECT_CUDA(cudaSetDevice(device_));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    mine_.write(encode(ncclInt32, {static_cast<double>(device_)}));
    std::vector<double> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = value(device_, i);
    sum_.write(encode(ncclInt32, values));
  }
  ~RankAtWork() { EXPECT_CUDA(cudaStreamDestroy(stream_)); }
  RankAtWork(const RankAtWork&) = delete;

  ncclResult_t start() {
    const ncclResult_t gathered =
        ncclAllGather(mine_.data(), all_.data(), 1, ncclInt32, comm_, stream_);
    if (gathered != ncclSuccess && gathered != ncclInProgress) return gathered;
    return ncclAllReduce(sum_.data(), sum_.data(), kCount, ncclInt32, ncclSum, comm_, stream_);
  }
  void synchronize() { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }
  /// `devices`: by rank.
  void check(const std::vector<int>& devices) {
    EXPECT_EQ(all_.read(), encode(ncclInt32, {devices.begin(), devices.end()}));
    std::vector<double> values(kCount, 0);
    for (const int device : devices)
      for (size_t i = 0; i < kCount; ++i) values[i] += value(device, i);
    EXPECT_EQ(sum_.read(), encode(ncclInt32, values));
    int rank = -1, count = -1;
    EXPECT_NCCL(ncclCommUserRank(comm_, &rank));
    EXPECT_NCCL(ncclCommCount(comm_, &count));
    EXPECT_EQ(devices[static_cast<size_t>(rank)], device_);
    EXPECT_EQ(count, nranks_);
  }

  static int device_of(ncclComm_t comm) {
    int device = -1;
    EXPECT_NCCL(ncclCommCuDevice(comm, &device));
    return device;
  }

 private:
  static double value(int device, size_t index) {
    return static_cast<double>((index * 7 + static_cast<size_t>(device) * 13) % 1001);
  }

  ncclComm_t comm_;
  int nranks_;
  int device_;
  DeviceBuffer mine_, all_, sum_;
  cudaStream_t stream_ = nullptr;
};

/// That `comms`, driven by this thread, are ranks of one communicator that works, whose ranks are
/// on `devices`.
inline void expect_works(const std::vector<ncclComm_t>& comms, const std::vector<int>& devices) {
  std::vector<std::unique_ptr<RankAtWork>> ranks;
  for (ncclComm_t comm : comms)
    ranks.push_back(std::make_unique<RankAtWork>(comm, static_cast<int>(devices.size())));
  ASSERT_NCCL(ncclGroupStart());
  for (const auto& rank : ranks) {
    const ncclResult_t started = rank->start();
    EXPECT_TRUE(started == ncclSuccess || started == ncclInProgress) << ncclGetLastError(nullptr);
  }
  const ncclResult_t ended = ncclGroupEnd();
  ASSERT_TRUE(ended == ncclSuccess || ended == ncclInProgress) << ncclGetLastError(nullptr);
  for (ncclComm_t comm : comms) ASSERT_EQ(settled(comm), ncclSuccess);
  for (const auto& rank : ranks) rank->synchronize();
  for (const auto& rank : ranks) rank->check(devices);
}

/// The same of all ranks, in their order.
inline void expect_works(const std::vector<ncclComm_t>& comms) {
  std::vector<int> devices;
  for (ncclComm_t comm : comms) {
    ASSERT_NE(comm, nullptr);
    devices.push_back(RankAtWork::device_of(comm));
  }
  expect_works(comms, devices);
}

}  // namespace niccolite::test
