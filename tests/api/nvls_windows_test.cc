// Operations by a multicast team on symmetric windows, without slots (NVLS).
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/api/nvls_cases.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// Memory of every rank of a cluster, which is a window.
class ClusterWindow {
 public:
  ClusterWindow(Cluster& cluster, size_t bytes, int flags = NCCL_WIN_COLL_SYMMETRIC)
      : cluster_(cluster),
        memory_(static_cast<size_t>(cluster.nranks())),
        windows_(memory_.size()) {
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(&memory_[static_cast<size_t>(rank)], bytes));
    }
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      EXPECT_NCCL(
          ncclCommWindowRegister(cluster.comm(rank), memory_[at], bytes, &windows_[at], flags));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ClusterWindow(const ClusterWindow&) = delete;
  ~ClusterWindow() {
    end();
    for (void* const memory : memory_) EXPECT_NCCL(ncclMemFree(memory));
  }

  const std::vector<void*>& memory() const { return memory_; }
  unsigned char* at(int rank, size_t offset) const {
    return static_cast<unsigned char*>(memory_[static_cast<size_t>(rank)]) + offset;
  }
  void end() {
    for (int rank = 0; rank < cluster_.nranks(); ++rank)
      if (ncclWindow_t& window = windows_[static_cast<size_t>(rank)];
          window != nullptr && cluster_.comm(rank) != nullptr) {
        EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(rank), window));
        window = nullptr;
      }
  }

 private:
  Cluster& cluster_;
  std::vector<void*> memory_;
  std::vector<ncclWindow_t> windows_;
};

// Counts of whole units go without slots, others through them.
TEST(NvlsWindows, EveryOperationIsRight) {
  for (const int nranks : {2, 3, 8}) {
    TeamCluster team(nranks);
    ClusterWindow window(*team, 16 << 20);
    for (const Call call : kCalls)
      for (const bool is_in_place : {false, true})
        for (const size_t count :
             {size_t{1}, size_t{16}, size_t{1003}, size_t{4096}, size_t{130'000}})
          for (const ncclDataType_t type : {ncclFloat, ncclBfloat16}) {
            const Case c{call, type, ncclSum, count, is_in_place};
            ASSERT_LE(needed(c, nranks), size_t{16} << 20);
            ASSERT_NO_FATAL_FAILURE(check(*team, c, window.memory()));
            // Memory without a window goes through slots, by the same plan.
            if (count == 4096) {
              ASSERT_NO_FATAL_FAILURE(check(*team, c));
            }
          }
  }
}

/// An all-reduce whose last rank has its buffer at another offset than the others.
std::string all_reduce_at(Cluster& cluster, const ClusterWindow& window, unsigned char* last) {
  constexpr size_t kCount = 4096;
  const int n = cluster.nranks();
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank) {
    unsigned char* const data = rank == n - 1 ? last : window.at(rank, 1 << 20);
    EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, cluster.comm(rank),
                              cluster.stream(rank)));
  }
  EXPECT_NCCL(ncclGroupEnd());
  std::string told;
  for (int rank = 0; rank < n; ++rank) {
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess && cudaStreamQuery(cluster.stream(rank)) == cudaErrorNotReady)
      EXPECT_NCCL(ncclCommGetAsyncError(cluster.comm(rank), &state));
    EXPECT_EQ(state, ncclInvalidUsage);
    told += ncclGetLastError(cluster.comm(rank));
  }
  cluster.abort();
  return told;
}

TEST(NvlsWindows, AnotherOffsetOnOneRankIsNamed) {
  TeamCluster team(3);
  ClusterWindow window(*team, 4 << 20);
  EXPECT_THAT(all_reduce_at(*team, window, window.at(2, 2 << 20)),
              ContainsRegex("rank [0-9] and rank [0-9] pass different memory to "
                            "ncclAllReduce.*NCCL_WIN_COLL_SYMMETRIC"));
}

TEST(NvlsWindows, ABufferOfOneRankThatIsNoWindowIsNamed) {
  TeamCluster team(3);
  ClusterWindow window(*team, 4 << 20);
  const DeviceBuffer plain(2, 4096 * sizeof(float));
  EXPECT_THAT(all_reduce_at(*team, window, plain.data()),
              ContainsRegex("rank [0-9] and rank [0-9] pass different memory to ncclAllReduce"));
}

/// Memory of every rank that is in no window, where captured operations have their buffers.
class ClusterMemory {
 public:
  ClusterMemory(Cluster& cluster, size_t bytes) : memory_(static_cast<size_t>(cluster.nranks())) {
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(&memory_[static_cast<size_t>(rank)], bytes));
    }
  }
  ClusterMemory(const ClusterMemory&) = delete;
  ~ClusterMemory() {
    for (void* const memory : memory_) EXPECT_NCCL(ncclMemFree(memory));
  }
  float* at(int rank, size_t offset) const {
    return reinterpret_cast<float*>(
        static_cast<unsigned char*>(memory_[static_cast<size_t>(rank)]) + offset);
  }

 private:
  std::vector<void*> memory_;
};

/// A graph of an all-reduce on each rank of a cluster, from byte `input` to byte `output` of a
/// memory, `rank_offset` further on each rank than on the one before it.
class CapturedAllReduce {
 public:
  static constexpr size_t kCount = 40'000;
  CapturedAllReduce(Cluster& cluster, const ClusterMemory& memory, size_t input, size_t output,
                    size_t rank_offset = 0)
      : cluster_(cluster), memory_(memory), input_(input), output_(output), step_(rank_offset) {
    const int n = cluster.nranks();
    for (int rank = 0; rank < n; ++rank)
      EXPECT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeRelaxed));
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < n; ++rank)
      EXPECT_NCCL(ncclAllReduce(input_of(rank), output_of(rank), kCount, ncclFloat, ncclSum,
                                cluster.comm(rank), cluster.stream(rank)));
    EXPECT_NCCL(ncclGroupEnd());
    for (int rank = 0; rank < n; ++rank) {
      cudaGraph_t graph = nullptr;
      EXPECT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
      EXPECT_CUDA(cudaGraphInstantiate(&runs_.emplace_back(), graph, 0));
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
  }
  CapturedAllReduce(const CapturedAllReduce&) = delete;
  ~CapturedAllReduce() {
    for (const cudaGraphExec_t run : runs_) EXPECT_CUDA(cudaGraphExecDestroy(run));
  }

  /// Launches it with new values, and returns how many results are wrong.
  size_t run(int round) {
    const int n = cluster_.nranks();
    for (int rank = 0; rank < n; ++rank) {
      std::vector<float> values(kCount);
      for (size_t i = 0; i < kCount; ++i) values[i] = value(rank, round, i);
      EXPECT_CUDA(cudaMemcpy(input_of(rank), values.data(), kCount * sizeof(float),
                             cudaMemcpyHostToDevice));
    }
    for (int rank = 0; rank < n; ++rank)
      EXPECT_CUDA(cudaGraphLaunch(runs_[static_cast<size_t>(rank)], cluster_.stream(rank)));
    size_t wrong = 0;
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_CUDA(cudaStreamSynchronize(cluster_.stream(rank)));
      std::vector<float> sums(kCount);
      EXPECT_CUDA(
          cudaMemcpy(sums.data(), output_of(rank), kCount * sizeof(float), cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int peer = 0; peer < n; ++peer) sum += value(peer, round, i);
        wrong += sums[i] != sum;
      }
    }
    return wrong;
  }

 private:
  static float value(int rank, int round, size_t i) {
    return static_cast<float>((i * 7 + static_cast<size_t>(rank * 3 + round)) % 64);
  }
  float* input_of(int rank) const {
    return memory_.at(rank, input_ + step_ * static_cast<size_t>(rank));
  }
  float* output_of(int rank) const {
    return memory_.at(rank, output_ + step_ * static_cast<size_t>(rank));
  }

  Cluster& cluster_;
  const ClusterMemory& memory_;
  const size_t input_, output_, step_;
  std::vector<cudaGraphExec_t> runs_;
};

TEST(NvlsCaptured, BuffersAtOnePlaceOfAllRanksAreRight) {
  TeamCluster team(4);
  const ClusterMemory memory(*team, 8 << 20);
  CapturedAllReduce out_of_place(*team, memory, 0, 1 << 20);
  CapturedAllReduce in_place(*team, memory, 2 << 20, 2 << 20);  // the same allocation again
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(out_of_place.run(round), 0U);
    EXPECT_EQ(in_place.run(round), 0U);
  }
}

// Where a rank has its buffer elsewhere, all go through slots: no error, as for windows.
TEST(NvlsCaptured, BuffersAtOtherPlacesAreRight) {
  TeamCluster team(3);
  const ClusterMemory memory(*team, 8 << 20);
  CapturedAllReduce same(*team, memory, 0, 1 << 20);
  CapturedAllReduce other(*team, memory, 2 << 20, 4 << 20, 4096);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(other.run(round), 0U);
    EXPECT_EQ(same.run(round), 0U);
  }
}

// A graph's end ends its windows; memory comes and goes, with and without a graph.
TEST(NvlsCaptured, GraphsAndMemoryMayComeAndGo) {
  TeamCluster team(3);
  for (int turn = 0; turn < 20; ++turn) {
    const ClusterMemory memory(*team, static_cast<size_t>(2 + turn % 3) << 20);
    for (int graph = 0; graph < 2; ++graph) {
      CapturedAllReduce captured(*team, memory, 0, 1 << 20);
      ASSERT_EQ(captured.run(turn), 0U);
      ASSERT_EQ(captured.run(turn + 1), 0U);
    }
  }
}

// Operations that are not captured go through slots of the same plan meanwhile, and windows of the
// user's beside them.
TEST(NvlsCaptured, GoBesideWindowsAndLiveOperations) {
  TeamCluster team(3);
  const ClusterMemory memory(*team, 4 << 20);
  CapturedAllReduce captured(*team, memory, 0, 1 << 20);
  ClusterWindow window(*team, 4 << 20);
  const Case c{Call::AllReduce, ncclFloat, ncclSum, 4096, false};
  for (int round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(check(*team, c));
    EXPECT_EQ(captured.run(round), 0U);
    ASSERT_NO_FATAL_FAILURE(check(*team, c, window.memory()));
  }
}

}  // namespace
}  // namespace niccolite::test
