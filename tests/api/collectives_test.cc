// Every collective through the C API on virtual GPUs: types, operations, counts, places, roots,
// alignment.

#include <thread>

#include "tests/api/trial.h"

namespace niccolite::test {
namespace {

constexpr ncclDataType_t kTypes[] = {ncclInt8,    ncclUint8,    ncclInt32,      ncclUint32,
                                     ncclInt64,   ncclUint64,   ncclFloat16,    ncclFloat32,
                                     ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
constexpr ncclRedOp_t kOperations[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

// Runs one operation on all ranks, from one thread.
void check(Cluster& cluster, const Operation& operation) {
  Trial trial(operation, cluster.nranks());
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    ASSERT_NCCL(trial.call(rank, cluster.comm(rank), cluster.stream(rank)));
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  ASSERT_TRUE(trial.is_right()) << cluster.nranks() << " ranks";
}

TEST(Collectives, MoveAndReductionEveryTypeWithEveryOperation) {
  for (int nranks : {1, 2, 3}) {
    Cluster cluster(nranks);
    for (Kind kind : kCollectives)
      for (ncclDataType_t type : kTypes)
        for (ncclRedOp_t op : kOperations) {
          if (!reduces(kind) && op != ncclSum) continue;
          for (bool in_place : {false, true})
            ASSERT_NO_FATAL_FAILURE(
                check(cluster, {kind, type, op, 1003, nranks - 1, 0, in_place}));
        }
  }
}

TEST(Collectives, HandleCountsThatDivideByNothing) {
  for (int nranks : {1, 2, 4, 5, 8}) {
    Cluster cluster(nranks);
    for (Kind kind : kCollectives)
      for (size_t count : {1u, 2u, 7u, 63u, 65u, 2047u, 2049u, 65537u})
        for (bool in_place : {false, true})
          ASSERT_NO_FATAL_FAILURE(
              check(cluster, {kind, ncclFloat, ncclSum, count, nranks / 2, 0, in_place}));
  }
}

TEST(Collectives, HandleDataOfManyRounds) {
  Cluster cluster(3);
  for (Kind kind : kCollectives)
    ASSERT_NO_FATAL_FAILURE(check(cluster, {kind, ncclInt32, ncclSum, 400'003, 1}));
}

TEST(Collectives, ServeEveryRoot) {
  Cluster cluster(5);
  for (Kind kind : kCollectives)
    for (int root = 0; has_root(kind) && root < 5; ++root)
      for (size_t count : {3u, 50'021u})
        for (bool in_place : {false, true})
          ASSERT_NO_FATAL_FAILURE(
              check(cluster, {kind, ncclInt32, ncclSum, count, root, 0, in_place}));
}

TEST(Collectives, HandlePointersAndBlocksAlignedToTheElementOnly) {
  Cluster cluster(3);
  for (Kind kind : kCollectives)
    for (size_t misalignment : {1u, 8u, 15u})
      for (size_t count : {1u, 37u, 5001u, 40'007u})
        ASSERT_NO_FATAL_FAILURE(
            check(cluster, {kind, ncclUint8, ncclSum, count, 1, 0, false, misalignment}));
}

TEST(Collectives, OfNothingSucceedAndTouchNothing) {
  Cluster cluster(2);
  for (Kind kind : kCollectives) {
    // Ranks need not even come.
    Trial trial({kind, ncclFloat, ncclSum, 0}, 2);
    EXPECT_NCCL(trial.call(0, cluster.comm(0), cluster.stream(0))) << name_of(kind);
    EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(0)));
  }
}

TEST(Collectives, WorkFromOneThreadPerRankWithoutAGroup) {
  constexpr int kRanks = 4;
  Cluster cluster(kRanks);
  std::vector<std::unique_ptr<Trial>> trials;
  for (Kind kind : kCollectives)
    for (size_t count : {5u, 30'011u})
      trials.push_back(
          std::make_unique<Trial>(Operation{kind, ncclFloat, ncclSum, count, 2}, kRanks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_CUDA(cudaSetDevice(rank));
      for (const auto& trial : trials)
        EXPECT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank)));
      EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& trial : trials) EXPECT_TRUE(trial->is_right());
}

TEST(Collectives, AreCapturedAndReplayed) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  std::vector<std::unique_ptr<Trial>> trials;
  for (Kind kind : kCollectives)
    trials.push_back(std::make_unique<Trial>(Operation{kind, ncclInt32, ncclSum, 3001, 1}, kRanks));
  std::vector<cudaGraphExec_t> graphs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const cudaStream_t stream = cluster.stream(rank);
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (const auto& trial : trials) ASSERT_NCCL(trial->call(rank, cluster.comm(rank), stream));
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[static_cast<size_t>(rank)], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  for (int replay = 0; replay < 5; ++replay) {
    for (const auto& trial : trials) trial->reset();
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_CUDA(cudaSetDevice(rank));
      ASSERT_CUDA(cudaGraphLaunch(graphs[static_cast<size_t>(rank)], cluster.stream(rank)));
    }
    cluster.synchronize();
    for (const auto& trial : trials) ASSERT_TRUE(trial->is_right()) << "replay " << replay;
  }
  for (cudaGraphExec_t graph : graphs) ASSERT_CUDA(cudaGraphExecDestroy(graph));
}

}  // namespace
}  // namespace niccolite::test
