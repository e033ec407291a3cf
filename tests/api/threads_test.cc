// Many threads of one process: communicators made, used and ended at the same time.

#include <thread>

#include "tests/api/trial.h"

namespace niccolite::test {
namespace {

std::vector<Operation> operations(size_t salt) {
  std::vector<Operation> all;
  for (Kind kind : {Kind::AllReduce, Kind::AllToAll, Kind::Broadcast, Kind::ReduceScatter})
    for (size_t count : {3u, 5003u})
      all.push_back({kind, ncclFloat, ncclSum, count, 1, 0, false, 0, salt});
  all.push_back({Kind::Message, ncclFloat, ncclSum, 7001, 0, 2, false, 0, salt});
  return all;
}

TEST(Threads, MakeUseAndEndCommunicatorsAtTheSameTime) {
  static constexpr int kThreads = 6, kRanks = 3, kRepetitions = 3;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([t] {
      for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        Cluster cluster(kRanks);
        std::vector<std::unique_ptr<Trial>> trials;
        for (const Operation& operation : operations(t))
          trials.push_back(std::make_unique<Trial>(operation, kRanks));
        EXPECT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < kRanks; ++rank)
          for (const auto& trial : trials)
            if (trial->takes_part(rank)) {
              EXPECT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank)));
            }
        EXPECT_NCCL(ncclGroupEnd());
        cluster.synchronize();
        for (const auto& trial : trials) EXPECT_TRUE(trial->is_right());
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, DriveOneRankEachOfSeveralCommunicatorsOnTheSameDevices) {
  static constexpr int kCommunicators = 4, kRanks = 3;
  std::vector<ncclUniqueId> ids(kCommunicators);
  std::vector<std::vector<std::unique_ptr<Trial>>> trials(kCommunicators);
  for (size_t c = 0; c < kCommunicators; ++c) {
    ASSERT_NCCL(ncclGetUniqueId(&ids[c]));
    for (const Operation& operation : operations(c))
      trials[c].push_back(std::make_unique<Trial>(operation, kRanks));
  }
  std::vector<std::thread> threads;
  for (size_t c = 0; c < kCommunicators; ++c)
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, c, rank] {
        EXPECT_CUDA(cudaSetDevice(rank));
        cudaStream_t stream = nullptr;
        EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        ncclComm_t comm = nullptr;
        EXPECT_NCCL(ncclCommInitRank(&comm, kRanks, ids[c], rank));
        for (const auto& trial : trials[c])
          if (trial->takes_part(rank)) {
            EXPECT_NCCL(trial->call(rank, comm, stream));
          }
        EXPECT_CUDA(cudaStreamSynchronize(stream));
        EXPECT_NCCL(ncclCommDestroy(comm));
        EXPECT_CUDA(cudaStreamDestroy(stream));
      });
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_communicator : trials)
    for (const auto& trial : of_communicator) EXPECT_TRUE(trial->is_right());
}

}  // namespace
}  // namespace niccolite::test
