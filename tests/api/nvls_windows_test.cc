// Operations by a multicast team on symmetric windows, without slots (NVLS).
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/api/nvls_cases.h"

namespace niccolite::test {
namespace {

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

/// An all-reduce of ones, in place at 1 MiB of a window; the last rank's is at `last`. Returns
/// whether all sums are right.
bool sums_are_right(Cluster& cluster, const ClusterWindow& window, unsigned char* last) {
  constexpr size_t kCount = 40'000;
  const int n = cluster.nranks();
  const std::vector<float> ones(kCount, 1);
  const auto data_of = [&](int rank) { return rank == n - 1 ? last : window.at(rank, 1 << 20); };
  for (int rank = 0; rank < n; ++rank)
    EXPECT_CUDA(
        cudaMemcpy(data_of(rank), ones.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank)
    EXPECT_NCCL(ncclAllReduce(data_of(rank), data_of(rank), kCount, ncclFloat, ncclSum,
                              cluster.comm(rank), cluster.stream(rank)));
  EXPECT_NCCL(ncclGroupEnd());
  bool are_right = true;
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
    std::vector<float> sums(kCount);
    EXPECT_CUDA(
        cudaMemcpy(sums.data(), data_of(rank), kCount * sizeof(float), cudaMemcpyDeviceToHost));
    are_right &= sums == std::vector<float>(kCount, static_cast<float>(n));
  }
  return are_right;
}

// The operation goes through slots on all ranks, whoever is the odd one.
TEST(NvlsWindows, AnotherPlaceOnOneRankIsNoError) {
  for (const int nranks : {2, 3, 4}) {
    TeamCluster team(nranks);
    ClusterWindow window(*team, 4 << 20);
    const DeviceBuffer plain(nranks - 1, 40'000 * sizeof(float));
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(sums_are_right(*team, window, window.at(nranks - 1, 2 << 20)));
      EXPECT_TRUE(sums_are_right(*team, window, plain.data()));
      EXPECT_TRUE(sums_are_right(*team, window, window.at(nranks - 1, 1 << 20)));
    }
  }
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

/// Registrations of a memory on every rank.
class Registered {
 public:
  Registered(Cluster& cluster, const ClusterMemory& memory, size_t bytes) : cluster_(cluster) {
    for (int rank = 0; rank < cluster.nranks(); ++rank)
      EXPECT_NCCL(ncclCommRegister(cluster.comm(rank), memory.at(rank, 0), bytes,
                                   &handles_.emplace_back()));
  }
  Registered(const Registered&) = delete;
  ~Registered() {
    for (int rank = 0; rank < cluster_.nranks(); ++rank)
      EXPECT_NCCL(ncclCommDeregister(cluster_.comm(rank), handles_[static_cast<size_t>(rank)]));
  }

 private:
  Cluster& cluster_;
  std::vector<void*> handles_;
};

/// Live all-reduces of new values each, in place at `offset`, `step` further on each next rank.
/// Returns how many sums are wrong.
size_t reduce_again_and_again(Cluster& cluster, const ClusterMemory& memory, int times,
                              size_t offset, size_t step = 0) {
  constexpr size_t kCount = 20'000;
  const int n = cluster.nranks();
  const auto data_of = [&](int rank) {
    return memory.at(rank, offset + step * static_cast<size_t>(rank));
  };
  size_t wrong = 0;
  for (int time = 0; time < times; ++time) {
    const std::vector<float> values(kCount, static_cast<float>(time));
    for (int rank = 0; rank < n; ++rank)
      EXPECT_CUDA(
          cudaMemcpy(data_of(rank), values.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < n; ++rank)
      EXPECT_NCCL(ncclAllReduce(data_of(rank), data_of(rank), kCount, ncclFloat, ncclSum,
                                cluster.comm(rank), cluster.stream(rank)));
    EXPECT_NCCL(ncclGroupEnd());
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
      std::vector<float> sums(kCount);
      EXPECT_CUDA(
          cudaMemcpy(sums.data(), data_of(rank), kCount * sizeof(float), cudaMemcpyDeviceToHost));
      for (const float sum : sums) wrong += sum != static_cast<float>(time * n);
    }
  }
  return wrong;
}

// Ranks compare them before some later operation; then all are right, wherever they lie.
TEST(NvlsRegistered, BuffersAreRightBeforeAndAfterRanksCompareThem) {
  constexpr size_t kBytes = 4 << 20;
  for (const int nranks : {2, 3}) {
    TeamCluster team(nranks);
    const ClusterMemory memory(*team, kBytes), other(*team, kBytes);
    for (int turn = 0; turn < 3; ++turn) {
      const Registered one(*team, memory, kBytes), two(*team, other, kBytes);
      EXPECT_EQ(reduce_again_and_again(*team, memory, 150, 0), 0U);
      EXPECT_EQ(reduce_again_and_again(*team, memory, 20, 4096, 8192), 0U);  // other places
      EXPECT_EQ(reduce_again_and_again(*team, other, 150, 1 << 20), 0U);
      EXPECT_EQ(reduce_again_and_again(*team, memory, 20, 0), 0U);
    }
    EXPECT_EQ(reduce_again_and_again(*team, memory, 20, 0), 0U);  // registered no more
  }
}

// Ranks need not register alike.
TEST(NvlsRegistered, ARankThatRegistersNothingIsNoError) {
  constexpr size_t kBytes = 4 << 20;
  TeamCluster team(3);
  const ClusterMemory memory(*team, kBytes);
  void* handle = nullptr;
  EXPECT_NCCL(ncclCommRegister((*team).comm(1), memory.at(1, 0), kBytes, &handle));
  EXPECT_EQ(reduce_again_and_again(*team, memory, 200, 0), 0U);
  {
    const Registered all(*team, memory, kBytes);
    EXPECT_EQ(reduce_again_and_again(*team, memory, 200, 0), 0U);
  }
  // Rank 1 has its registration still, and its window with it.
  EXPECT_EQ(reduce_again_and_again(*team, memory, 50, 0), 0U);
  EXPECT_NCCL(ncclCommDeregister((*team).comm(1), handle));
  EXPECT_EQ(reduce_again_and_again(*team, memory, 50, 0), 0U);
}

}  // namespace
}  // namespace niccolite::test
