// The device memory of communicators: what it is, and that a communicator works as before after it
// was given back and taken again.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {
namespace {

constexpr size_t kCount = 50'000;

uint64_t statistic(ncclComm_t comm, ncclCommMemStat_t which) {
  uint64_t value = ~uint64_t{0};
  EXPECT_NCCL(ncclCommMemStats(comm, which, &value));
  return value;
}

size_t free_bytes(int device) {
  size_t free = 0, total = 0;
  EXPECT_CUDA(cudaSetDevice(device));
  EXPECT_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

/// Sums of rank + 1 over all ranks, by `launch(rank)` in a group.
class Sums {
 public:
  explicit Sums(const Cluster& cluster) : cluster_(cluster) {
    for (int rank = 0; rank < cluster.nranks(); ++rank)
      buffers_.emplace_back(rank, kCount * sizeof(float));
  }
  void fill() {
    for (size_t rank = 0; rank < buffers_.size(); ++rank)
      buffers_[rank].write(
          encode(ncclFloat, std::vector<double>(kCount, static_cast<double>(rank + 1))));
  }
  ncclResult_t queue(int rank) {
    void* buffer = buffers_[static_cast<size_t>(rank)].data();
    return ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, cluster_.comm(rank),
                         cluster_.stream(rank));
  }
  void run() {
    fill();
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < cluster_.nranks(); ++rank) EXPECT_NCCL(queue(rank));
    ASSERT_NCCL(ncclGroupEnd());
    check();
  }
  void check() {
    cluster_.synchronize();
    const int n = cluster_.nranks();
    const Bytes expected = encode(ncclFloat, std::vector<double>(kCount, n * (n + 1) / 2));
    for (const DeviceBuffer& buffer : buffers_) EXPECT_EQ(buffer.read(), expected);
  }

 private:
  const Cluster& cluster_;
  std::vector<DeviceBuffer> buffers_;
};

ncclResult_t suspend_all(const Cluster& cluster) {
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    EXPECT_NCCL(ncclCommSuspend(cluster.comm(rank), NCCL_SUSPEND_MEM));
  return ncclGroupEnd();
}
ncclResult_t resume_all(const Cluster& cluster) {
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    EXPECT_NCCL(ncclCommResume(cluster.comm(rank)));
  return ncclGroupEnd();
}

TEST(MemoryUse, IsWhatTheDriverHasGiven) {
  Cluster cluster(3);
  Sums sums(cluster);
  const size_t before = free_bytes(1);
  EXPECT_EQ(statistic(cluster.comm(1), ncclStatGpuMemTotal), 0u);
  sums.run();
  const uint64_t total = statistic(cluster.comm(1), ncclStatGpuMemTotal);
  EXPECT_GT(total, 0u);
  EXPECT_EQ(before - free_bytes(1), total);
  EXPECT_EQ(statistic(cluster.comm(1), ncclStatGpuMemSuspend), total);
  EXPECT_EQ(statistic(cluster.comm(1), ncclStatGpuMemPersist), 0u);
  EXPECT_EQ(statistic(cluster.comm(1), ncclStatGpuMemSuspended), 0u);
}

// What waits for signals reads their counters, suspended or not.
TEST(MemoryUse, OfSignalsStaysWhenConnectionsAreSuspended) {
  Cluster cluster(2);
  Sums sums(cluster);
  const size_t before = free_bytes(1);
  ncclWaitSignalDesc_t one{1, 0, 0, 0};
  ASSERT_NCCL(ncclWaitSignal(1, &one, cluster.comm(1), cluster.stream(1)));
  ASSERT_NCCL(ncclSignal(1, 0, 0, 0, cluster.comm(0), cluster.stream(0)));
  cluster.synchronize();
  const uint64_t lines = statistic(cluster.comm(1), ncclStatGpuMemPersist);
  EXPECT_GT(lines, 0u);
  EXPECT_EQ(before - free_bytes(1), lines);
  sums.run();
  const uint64_t total = statistic(cluster.comm(1), ncclStatGpuMemTotal);
  EXPECT_EQ(before - free_bytes(1), total);
  EXPECT_EQ(statistic(cluster.comm(1), ncclStatGpuMemSuspend), total - lines);
  ASSERT_NCCL(suspend_all(cluster));
  EXPECT_EQ(before - free_bytes(1), lines);
  ASSERT_NCCL(resume_all(cluster));
  sums.run();
  ASSERT_NCCL(ncclWaitSignal(1, &one, cluster.comm(1), cluster.stream(1)));
  ASSERT_NCCL(ncclSignal(1, 0, 0, 0, cluster.comm(0), cluster.stream(0)));
  cluster.synchronize();
}

TEST(MemoryUse, OfManyCommunicatorsAddsUp) {
  const size_t before = free_bytes(0);
  {
    Cluster one(2), two(2), three(2);
    for (const Cluster* cluster : {&one, &two, &three}) {
      Sums sums(*cluster);
      sums.run();
    }
    uint64_t total = 0;
    for (const Cluster* cluster : {&one, &two, &three})
      total += statistic(cluster->comm(0), ncclStatGpuMemTotal);
    // Each share is rounded down.
    EXPECT_NEAR(static_cast<double>(before - free_bytes(0)), static_cast<double>(total), 16.0);
  }
  EXPECT_EQ(free_bytes(0), before);
}

TEST(Suspend, GivesTheMemoryBackAndResumeBringsItAgain) {
  Cluster cluster(3);
  Sums sums(cluster);
  const size_t before = free_bytes(2);
  sums.run();
  const size_t used = before - free_bytes(2);
  for (int round = 0; round < 3; ++round) {
    ASSERT_NCCL(suspend_all(cluster));
    EXPECT_EQ(free_bytes(2), before);
    EXPECT_EQ(statistic(cluster.comm(2), ncclStatGpuMemSuspended), 1u);
    EXPECT_EQ(statistic(cluster.comm(2), ncclStatGpuMemTotal), used);
    ASSERT_NCCL(resume_all(cluster));
    EXPECT_EQ(before - free_bytes(2), used);
    EXPECT_EQ(statistic(cluster.comm(2), ncclStatGpuMemSuspended), 0u);
    sums.run();
  }
}

TEST(Suspend, WorksFromAThreadPerRank) {
  Cluster cluster(4);
  Sums sums(cluster);
  sums.run();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 10; ++round) {
        EXPECT_NCCL(ncclCommSuspend(cluster.comm(rank), NCCL_SUSPEND_MEM));
        EXPECT_NCCL(ncclCommResume(cluster.comm(rank)));
      }
    });
  for (std::thread& thread : threads) thread.join();
  sums.run();
}

TEST(Suspend, InOneGroupWithResumeKeepsTheOrderOfTheCalls) {
  Cluster cluster(2);
  Sums sums(cluster);
  sums.run();
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_NCCL(ncclCommSuspend(cluster.comm(rank), NCCL_SUSPEND_MEM));
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommResume(cluster.comm(rank)));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(statistic(cluster.comm(0), ncclStatGpuMemSuspended), 0u);
  sums.run();
}

TEST(Suspend, LeavesGraphsAsTheyWere) {
  Cluster cluster(2);
  Sums sums(cluster);
  cudaGraphExec_t graphs[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
    EXPECT_NCCL(sums.queue(rank));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < 2; ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[rank], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  for (int round = 0; round < 3; ++round) {
    sums.fill();
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_CUDA(cudaGraphLaunch(graphs[rank], cluster.stream(rank)));
    sums.check();
    ASSERT_NCCL(suspend_all(cluster));
    ASSERT_NCCL(resume_all(cluster));
  }
  for (cudaGraphExec_t graph : graphs) EXPECT_CUDA(cudaGraphExecDestroy(graph));
}

TEST(Suspend, LeavesOtherCommunicatorsAlone) {
  Cluster sleeps(2), works(2);
  Sums of_sleeping(sleeps), of_working(works);
  of_sleeping.run();
  of_working.run();
  ASSERT_NCCL(suspend_all(sleeps));
  of_working.run();
  ASSERT_NCCL(resume_all(sleeps));
  of_sleeping.run();
  of_working.run();
  ASSERT_NCCL(suspend_all(sleeps));  // and may be destroyed as it is
}

TEST(Suspend, RefusesOperationsUntilItIsResumed) {
  Cluster cluster(2);
  Sums sums(cluster);
  sums.run();
  ASSERT_NCCL(suspend_all(cluster));
  EXPECT_EQ(sums.queue(0), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("ncclCommResume"), std::string::npos);
  ASSERT_NCCL(resume_all(cluster));
  sums.run();
}

TEST(Suspend, TellsEveryRankWhoIsNotInTheStateForIt) {
  Cluster cluster(3);
  EXPECT_EQ(resume_all(cluster), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("not suspended"), std::string::npos);
  ASSERT_NCCL(suspend_all(cluster));
  EXPECT_EQ(suspend_all(cluster), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("suspended already"), std::string::npos);
  ASSERT_NCCL(resume_all(cluster));
  Sums(cluster).run();
}

TEST(Suspend, IsRefusedOnAllRanksWhileOneHasWorkUnderWay) {
  Cluster cluster(2);
  Sums sums(cluster);
  sums.run();
  // Held up on rank 0 by work of the program's before it.
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool is_open = false;
  } gate;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaLaunchHostFunc(
      cluster.stream(0),
      [](void* data) {
        auto& waited = *static_cast<Gate*>(data);
        std::unique_lock lock(waited.mutex);
        waited.opened.wait(lock, [&] { return waited.is_open; });
      },
      &gate));
  sums.fill();
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(sums.queue(rank));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(suspend_all(cluster), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("under way"), std::string::npos);
  {
    std::lock_guard lock(gate.mutex);
    gate.is_open = true;
  }
  gate.opened.notify_all();
  sums.check();
  ASSERT_NCCL(suspend_all(cluster));
  ASSERT_NCCL(resume_all(cluster));
  sums.run();
}

TEST(Suspend, RefusesBadArguments) {
  Cluster cluster(1);
  uint64_t value = 0;
  EXPECT_EQ(ncclCommSuspend(nullptr, NCCL_SUSPEND_MEM), ncclInvalidArgument);
  EXPECT_EQ(ncclCommSuspend(cluster.comm(0), 2), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommSuspend(cluster.comm(0), 0));  // nothing is asked for
  EXPECT_EQ(statistic(cluster.comm(0), ncclStatGpuMemSuspended), 0u);
  EXPECT_EQ(ncclCommResume(nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommMemStats(cluster.comm(0), ncclStatGpuMemTotal, nullptr), ncclInvalidArgument);
  const int none = 4;
  ncclCommMemStat_t unknown;
  std::memcpy(&unknown, &none, sizeof unknown);
  EXPECT_EQ(ncclCommMemStats(cluster.comm(0), unknown, &value), ncclInvalidArgument);
  EXPECT_EQ(ncclCommMemStats(nullptr, ncclStatGpuMemTotal, &value), ncclInvalidArgument);
  ASSERT_NCCL(ncclCommSuspend(cluster.comm(0), NCCL_SUSPEND_MEM));
  ASSERT_NCCL(ncclCommResume(cluster.comm(0)));
}

}  // namespace
}  // namespace niccolite::test
