// Graphs of communicators that have ended: they can be launched as before, and give back all that
// they use when the last of them is destroyed.
#include <chrono>
#include <functional>
#include <thread>

#include "tests/api/usage.h"
#include "tests/api/values.h"

namespace niccolite::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 50'000;

using Results = std::vector<ncclResult_t>;
const Results kAllRight(kRanks, ncclSuccess);

/// A graph for each rank.
class Graphs {
 public:
  Graphs() = default;
  Graphs(const Graphs&) = delete;
  ~Graphs() { destroy(); }

  /// `call(rank)` queues on the rank's stream.
  void capture(const Cluster& cluster, const std::function<void(int rank)>& call) {
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      cudaGraph_t graph = nullptr;
      ASSERT_CUDA(cudaSetDevice(rank));
      ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
      call(rank);
      ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
      ASSERT_CUDA(cudaGraphInstantiate(&executables_.emplace_back(), graph, 0));
      ASSERT_CUDA(cudaGraphDestroy(graph));
    }
  }
  void launch(const Cluster& cluster) const {
    for (size_t rank = 0; rank < executables_.size(); ++rank)
      ASSERT_CUDA(cudaGraphLaunch(executables_[rank], cluster.stream(static_cast<int>(rank))));
    cluster.synchronize();
  }
  void destroy() {
    for (cudaGraphExec_t executable : executables_) EXPECT_CUDA(cudaGraphExecDestroy(executable));
    executables_.clear();
  }

 private:
  std::vector<cudaGraphExec_t> executables_;
};

/// An all-reduce from buffers of its own.
class Sum {
 public:
  Sum() {
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs_.emplace_back(rank, kCount * sizeof(int));
      outputs_.emplace_back(rank, kCount * sizeof(int));
      std::vector<double> values(kCount), sums(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        values[i] = value(rank, i);
        for (int of = 0; of < kRanks; ++of) sums[i] += value(of, i);
      }
      inputs_.back().write(encode(ncclInt32, values));
      sum_ = encode(ncclInt32, sums);
    }
  }
  void call(const Cluster& cluster, int rank) const {
    const auto i = static_cast<size_t>(rank);
    ASSERT_NCCL(ncclAllReduce(inputs_[i].data(), outputs_[i].data(), kCount, ncclInt32, ncclSum,
                              cluster.comm(rank), cluster.stream(rank)));
  }
  void capture(Graphs& graphs, const Cluster& cluster) const {
    graphs.capture(cluster, [&](int rank) { call(cluster, rank); });
  }
  void run(const Cluster& cluster) const {
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) call(cluster, rank);
    ASSERT_NCCL(ncclGroupEnd());
    cluster.synchronize();
  }
  /// Launches, and looks at what came of it.
  void expect_right(const Graphs& graphs, const Cluster& cluster) {
    for (DeviceBuffer& output : outputs_) output.poison();
    graphs.launch(cluster);
    for (const DeviceBuffer& output : outputs_) {
      EXPECT_EQ(output.read(), sum_);
      EXPECT_TRUE(output.guards_are_intact());
    }
  }

 private:
  static double value(int rank, size_t index) {
    return static_cast<double>((index * 7 + static_cast<size_t>(rank) * 13) % 1001);
  }
  std::vector<DeviceBuffer> inputs_, outputs_;
  std::vector<unsigned char> sum_;
};

/// Of the first device.
size_t free_bytes() { return Usage::now().free_bytes; }

/// A thread gives back what the last graph has used.
void expect_free(size_t bytes) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (free_bytes() < bytes && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  EXPECT_GE(free_bytes(), bytes);
}

TEST(GraphsThatOutlive, ACommunicatorAreLaunchedAndGiveItsMemoryBack) {
  Sum sum;
  const size_t before = free_bytes();
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.capture(graphs, cluster);
  sum.expect_right(graphs, cluster);
  EXPECT_EQ(cluster.destroy(), kAllRight);
  for (int time = 0; time < 3; ++time) sum.expect_right(graphs, cluster);
  EXPECT_LT(free_bytes(), before);
  graphs.destroy();
  expect_free(before);
}

TEST(GraphsThatOutlive, AreLaunchedForTheFirstTimeThen) {
  Sum sum;
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.capture(graphs, cluster);
  EXPECT_EQ(cluster.destroy(), kAllRight);
  sum.expect_right(graphs, cluster);
}

TEST(GraphsThatOutlive, AFinalizedCommunicator) {
  Sum sum;
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.capture(graphs, cluster);
  ASSERT_NCCL(ncclGroupStart());
  for (ncclComm_t comm : cluster.comms()) ASSERT_NCCL(ncclCommFinalize(comm));
  ASSERT_NCCL(ncclGroupEnd());
  sum.expect_right(graphs, cluster);
  EXPECT_EQ(cluster.destroy(), kAllRight);
  sum.expect_right(graphs, cluster);
}

TEST(GraphsThatOutlive, SomeRanksAreLaunchedOnAll) {
  Sum sum;
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.capture(graphs, cluster);
  EXPECT_NCCL(ncclCommDestroy(std::exchange(cluster.comms()[1], nullptr)));
  sum.expect_right(graphs, cluster);
  sum.expect_right(graphs, cluster);
}

TEST(GraphsThatOutlive, KeepTheMemoryUntilTheLastIsDestroyed) {
  Sum first, second;
  const size_t before = free_bytes();
  Cluster cluster(kRanks);
  Graphs one, other;
  first.capture(one, cluster);
  second.capture(other, cluster);
  EXPECT_EQ(cluster.destroy(), kAllRight);
  first.expect_right(one, cluster);
  one.destroy();
  second.expect_right(other, cluster);
  EXPECT_LT(free_bytes(), before);
  other.destroy();
  expect_free(before);
}

TEST(GraphsThatOutlive, MayBeCopiesOfTheOneThatWasCaptured) {
  Sum sum;
  const size_t before = free_bytes();
  Cluster cluster(kRanks);
  std::vector<cudaGraph_t> copies(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
    sum.call(cluster, rank);
    ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
    ASSERT_CUDA(cudaGraphClone(&copies[static_cast<size_t>(rank)], graph));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  EXPECT_EQ(cluster.destroy(), kAllRight);
  // Nothing but the copies is left: an executable is made after the end, too.
  for (int time = 0; time < 2; ++time) {
    std::vector<cudaGraphExec_t> executables(kRanks);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_CUDA(cudaGraphInstantiate(&executables[rank], copies[rank], 0));
      ASSERT_CUDA(cudaGraphLaunch(executables[rank], cluster.stream(static_cast<int>(rank))));
    }
    cluster.synchronize();
    for (cudaGraphExec_t executable : executables) ASSERT_CUDA(cudaGraphExecDestroy(executable));
  }
  EXPECT_LT(free_bytes(), before);
  for (cudaGraph_t copy : copies) ASSERT_CUDA(cudaGraphDestroy(copy));
  expect_free(before);
}

TEST(GraphsThatOutlive, ACommunicatorThatEndsWhileTheyAreCaptured) {
  Sum sum;
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.run(cluster);  // which connects them
  graphs.capture(cluster, [&](int rank) {
    sum.call(cluster, rank);
    EXPECT_NCCL(
        ncclCommDestroy(std::exchange(cluster.comms()[static_cast<size_t>(rank)], nullptr)));
  });
  sum.expect_right(graphs, cluster);
}

TEST(GraphsThatOutlive, HoldNothingOfACaptureThatCameToNothing) {
  Sum sum;
  const DeviceBuffer word(0, 4);
  const size_t before = free_bytes();
  Cluster cluster(kRanks);
  sum.run(cluster);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(0), cudaStreamCaptureModeThreadLocal));
  sum.call(cluster, 0);
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  ASSERT_CUDA(cudaEventRecord(event, cluster.stream(0)));
  ASSERT_CUDA(cudaStreamWaitEvent(other, event, 0));  // which never joins it again
  ASSERT_CUDA(cudaMemsetAsync(word.data(), 0, 4, other));
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(cluster.stream(0), &graph), cudaSuccess);
  cudaGetLastError();
  ASSERT_CUDA(cudaEventDestroy(event));
  ASSERT_CUDA(cudaStreamDestroy(other));
  EXPECT_EQ(cluster.destroy(), kAllRight);
  expect_free(before);
}

// An abort ends the waits of graphs, too: without results.
TEST(GraphsThatOutlive, AnAbortedCommunicatorEndAtOnce) {
  Sum sum;
  const size_t before = free_bytes();
  Cluster cluster(kRanks);
  Graphs graphs;
  sum.capture(graphs, cluster);
  cluster.abort();
  for (int time = 0; time < 3; ++time) graphs.launch(cluster);
  EXPECT_LT(free_bytes(), before);
  graphs.destroy();
  expect_free(before);
}

TEST(GraphsThatOutlive, HoldMessagesAndLists) {
  Cluster cluster(kRanks);
  std::vector<DeviceBuffer> sent, received;
  for (int rank = 0; rank < kRanks; ++rank) {
    sent.emplace_back(rank, kCount);
    received.emplace_back(rank, kCount);
    sent.back().write(std::vector<unsigned char>(kCount, static_cast<unsigned char>(rank + 1)));
  }
  Graphs graphs;
  graphs.capture(cluster, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclSend(sent[i].data(), kCount, ncclUint8, (rank + 1) % kRanks, cluster.comm(rank),
                         cluster.stream(rank)));
    ASSERT_NCCL(ncclRecv(received[i].data(), kCount, ncclUint8, (rank + kRanks - 1) % kRanks,
                         cluster.comm(rank), cluster.stream(rank)));
    ASSERT_NCCL(ncclGroupEnd());
  });
  EXPECT_EQ(cluster.destroy(), kAllRight);
  for (int time = 0; time < 3; ++time) {
    for (DeviceBuffer& buffer : received) buffer.poison();
    graphs.launch(cluster);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(received[static_cast<size_t>(rank)].read(),
                std::vector<unsigned char>(
                    kCount, static_cast<unsigned char>((rank + kRanks - 1) % kRanks + 1)));
  }
}

TEST(GraphsThatOutlive, HoldPutsAndSignals) {
  constexpr int kTwo = 2;
  Cluster cluster(kTwo);
  std::vector<void*> memory(kTwo);
  std::vector<ncclWindow_t> windows(kTwo);
  for (int rank = 0; rank < kTwo; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(ncclMemAlloc(&memory[static_cast<size_t>(rank)], kCount));
    ASSERT_CUDA(cudaMemset(memory[static_cast<size_t>(rank)], rank + 1, kCount));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < kTwo; ++rank)
    ASSERT_NCCL(ncclCommWindowRegister(cluster.comms()[rank], memory[rank], kCount, &windows[rank],
                                       NCCL_WIN_COLL_SYMMETRIC));
  ASSERT_NCCL(ncclGroupEnd());
  const std::vector<unsigned char> mine(64, 1);  // of rank 0's memory
  Graphs graphs;
  graphs.capture(cluster, [&](int rank) {
    if (rank == 0) {
      ASSERT_NCCL(ncclPutSignal(memory[0], mine.size(), ncclUint8, 1, windows[0], 0, 0, 0, 0,
                                cluster.comm(0), cluster.stream(0)));
      return;
    }
    ncclWaitSignalDesc_t wait{.opCnt = 1, .peer = 0, .sigIdx = 0, .ctx = 0};
    ASSERT_NCCL(ncclWaitSignal(1, &wait, cluster.comm(1), cluster.stream(1)));
  });
  cluster.destroy();
  for (int time = 0; time < 3; ++time) {
    ASSERT_CUDA(cudaMemset(memory[1], 0, kCount));
    graphs.launch(cluster);
    std::vector<unsigned char> got(mine.size());
    ASSERT_CUDA(cudaMemcpy(got.data(), memory[1], got.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, mine);
  }
  graphs.destroy();
  for (void* of_rank : memory) EXPECT_NCCL(ncclMemFree(of_rank));
}

TEST(GraphsThatOutlive, LeaveNothingBehind) {
  Sum sum;
  expect_nothing_left<100>([&] {
    const size_t before = free_bytes();
    {
      Cluster cluster(kRanks);
      Graphs graphs;
      sum.capture(graphs, cluster);
      EXPECT_EQ(cluster.destroy(), kAllRight);
      sum.expect_right(graphs, cluster);
    }
    expect_free(before);
  });
}

}  // namespace
}  // namespace niccolite::test
