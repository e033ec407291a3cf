// Operations by a multicast team (NVLS) on virtual GPUs: NCCL_ALGO=NVLS allows nothing else. What
// the team reduces has the operands of every other way, in the order in which the GPUs joined:
// values of these tests are exact in every order.
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/api/nvls_cases.h"

namespace niccolite::test {
namespace {

TEST(Nvls, AllReduceIsRightForAllThatASwitchReduces) {
  constexpr ncclDataType_t kIntegersAndHalves[] = {ncclInt32,  ncclUint32,  ncclInt64,
                                                   ncclUint64, ncclFloat16, ncclBfloat16};
  for (const int nranks : {2, 3, 8}) {
    TeamCluster team(nranks);
    for (const bool is_in_place : {false, true})
      for (const size_t count : {size_t{1}, size_t{1003}, size_t{70'001}}) {
        for (const ncclDataType_t type : kIntegersAndHalves)
          for (const ncclRedOp_t op : {ncclSum, ncclMin, ncclMax})
            ASSERT_NO_FATAL_FAILURE(check(*team, {Call::AllReduce, type, op, count, is_in_place}));
        for (const ncclDataType_t type : {ncclFloat32, ncclFloat64})
          ASSERT_NO_FATAL_FAILURE(
              check(*team, {Call::AllReduce, type, ncclSum, count, is_in_place}));
      }
  }
}

TEST(Nvls, EveryCollectiveIsRight) {
  for (const int nranks : {2, 5, 16}) {
    TeamCluster team(nranks);
    for (const Call call : kCalls)
      for (const bool is_in_place : {false, true})
        for (const size_t count :
             {size_t{1}, size_t{1003}, size_t{nranks < 16 ? 300'007u : 9'001u}})
          ASSERT_NO_FATAL_FAILURE(check(*team, {call, ncclFloat, ncclSum, count, is_in_place}));
  }
}

// The longest have several rounds, which use the slots again.
TEST(Nvls, WordsThatOneRankStoresToAllAreRight) {
  for (const int nranks : {2, 5, 16}) {
    TeamCluster team(nranks, "NVLS", "LL");
    for (const Call call : {Call::AllReduce, Call::AllGather, Call::Broadcast})
      for (const bool is_in_place : {false, true})
        for (const size_t count : {size_t{1}, size_t{1003}, size_t{30'007}})
          for (const ncclDataType_t type : {ncclFloat, ncclFloat16})
            ASSERT_NO_FATAL_FAILURE(check(*team, {call, type, ncclSum, count, is_in_place}));
  }
}

TEST(Nvls, WordsAndChunksHaveSlotsOfTheirOwn) {
  TeamCluster team(4);
  for (int round = 0; round < 3; ++round)
    for (const size_t count : {size_t{300'007}, size_t{1}, size_t{70'001}, size_t{500}})
      for (const Call call : {Call::AllReduce, Call::AllGather})
        ASSERT_NO_FATAL_FAILURE(check(*team, {call, ncclFloat, ncclSum, count, true}));
}

/// One all-reduce of values whose sum depends on the order of addition; rank 0's result.
Bytes inexact_sum(Cluster& cluster, size_t count) {
  std::vector<DeviceBuffer> buffers;
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i)
      values[i] = 1 / static_cast<float>(3 + (i * 7 + static_cast<size_t>(rank) * 13) % 101);
    Bytes bytes(count * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    buffers.emplace_back(rank, bytes.size());
    buffers.back().write(bytes);
  }
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    unsigned char* const data = buffers[static_cast<size_t>(rank)].data();
    EXPECT_NCCL(ncclAllReduce(data, data, count, ncclFloat, ncclSum, cluster.comm(rank),
                              cluster.stream(rank)));
  }
  EXPECT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (const DeviceBuffer& buffer : buffers) EXPECT_EQ(buffer.read(), buffers[0].read());
  return buffers[0].read();
}

// No switch reduces words: each rank does, in the order of ranks.
TEST(Nvls, WordsGiveTheBitsOfTheOneShotAllReduce) {
  for (const int nranks : {3, 8}) {
    TeamCluster team(nranks, "NVLS", "LL"), direct(nranks, "one_shot", "LL");
    for (const size_t count : {size_t{1}, size_t{1003}, size_t{9'001}})
      EXPECT_EQ(inexact_sum(*team, count), inexact_sum(*direct, count)) << nranks << " " << count;
  }
}

// A flag returns after 2^16 steps, so slots are cleaned of older ones: else the words of the first
// all-reduce would pass for words of the last one.
TEST(Nvls, WordsOfLongAgoAreNotTakenForPresentOnes) {
  TeamCluster team(2, "NVLS", "LL");
  Cluster& cluster = *team;
  constexpr size_t kCount = 1000, kShort = 1;
  constexpr uint32_t kSteps = 1u << 16;
  std::vector<DeviceBuffer> buffers;
  for (int rank = 0; rank < 2; ++rank) buffers.emplace_back(rank, kCount * sizeof(float));
  const auto reduce = [&](int rank, size_t count) {
    unsigned char* const data = buffers[static_cast<size_t>(rank)].data();
    EXPECT_NCCL(ncclAllReduce(data, data, count, ncclInt32, ncclMax, cluster.comm(rank),
                              cluster.stream(rank)));
  };
  ASSERT_NO_FATAL_FAILURE(check(cluster, {Call::AllReduce, ncclInt32, ncclMax, kCount, true}));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_CUDA(cudaSetDevice(rank));
      for (uint32_t step = 1; step < kSteps; ++step) {
        reduce(rank, kShort);
        if (step % 256 != 0) continue;
        EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
      }
    });
  for (std::thread& thread : threads) thread.join();
  cluster.synchronize();
  // Rank 0's words of now come late.
  Bytes last(kCount * sizeof(int32_t), 0x22), first(kCount * sizeof(int32_t), 0x11);
  buffers[0].write(last);
  buffers[1].write(first);
  reduce(1, kCount);
  reduce(0, kCount);
  cluster.synchronize();
  for (const DeviceBuffer& buffer : buffers) EXPECT_EQ(buffer.read(), last);
}

TEST(Nvls, WhatASwitchDoesNotReduceIsRefusedOrGoesAnotherWay) {
  {
    TeamCluster team(3);
    DeviceBuffer buffer(0, 64);
    for (const auto& [type, op] : {std::pair(ncclInt8, ncclSum),
                                   {ncclFloat32, ncclMax},
                                   {ncclFloat64, ncclMin},
                                   {ncclFloat16, ncclProd},
                                   {ncclFloat32, ncclAvg}}) {
      EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 8, type, op, (*team).comm(0),
                              (*team).stream(0)),
                ncclInvalidUsage);
      EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("NCCL_ALGO"), std::string::npos)
          << ncclGetLastError(nullptr);
    }
  }
  TeamCluster team(3, "NVLS,ring");
  for (const ncclDataType_t type : {ncclInt8, ncclFloat32, ncclFloat64, ncclFloat8e4m3})
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclAvg})
      ASSERT_NO_FATAL_FAILURE(check(*team, {Call::AllReduce, type, op, 1003, false}));
}

TEST(Nvls, AGraphThatRunsAgainGivesTheSame) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 50'000;
  TeamCluster team(kRanks);
  Cluster& cluster = *team;
  std::vector<DeviceBuffer> buffers;
  std::vector<cudaGraphExec_t> graphs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) buffers.emplace_back(rank, kCount * 4);
  for (int rank = 0; rank < kRanks; ++rank)
    ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    unsigned char* const data = buffers[static_cast<size_t>(rank)].data();
    ASSERT_NCCL(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, cluster.comm(rank),
                              cluster.stream(rank)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[static_cast<size_t>(rank)], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  const Bytes want = expected(ncclFloat, ncclSum, kCount, kRanks);
  for (int run = 0; run < 3; ++run) {
    for (int rank = 0; rank < kRanks; ++rank)
      buffers[static_cast<size_t>(rank)].write(input(ncclFloat, ncclSum, rank, kCount, kRanks));
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_CUDA(cudaGraphLaunch(graphs[static_cast<size_t>(rank)], cluster.stream(rank)));
    cluster.synchronize();
    for (const DeviceBuffer& buffer : buffers) ASSERT_EQ(buffer.read(), want) << "run " << run;
    // Live calls in between go by the same slots.
    ASSERT_NO_FATAL_FAILURE(check(cluster, {Call::AllReduce, ncclInt32, ncclSum, 777, true}));
  }
  for (const cudaGraphExec_t graph : graphs) ASSERT_CUDA(cudaGraphExecDestroy(graph));
}

TEST(Nvls, AGroupOfSeveralIsRight) {
  constexpr int kRanks = 3;
  constexpr size_t kCalls = 5, kCount = 4321;
  for (const char* const algorithms : {"NVLS", "NVLS,ring"}) {
    TeamCluster team(kRanks, algorithms);
    Cluster& cluster = *team;
    std::vector<DeviceBuffer> buffers;  // [call][rank]
    for (size_t call = 0; call < kCalls; ++call)
      for (int rank = 0; rank < kRanks; ++rank) {
        buffers.emplace_back(rank, kCount * 4);
        buffers.back().write(input(ncclInt32, ncclSum, rank, kCount, kRanks));
      }
    ASSERT_NCCL(ncclGroupStart());
    for (size_t call = 0; call < kCalls; ++call)
      for (int rank = 0; rank < kRanks; ++rank) {
        unsigned char* const data = buffers[call * kRanks + static_cast<size_t>(rank)].data();
        ASSERT_NCCL(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, cluster.comm(rank),
                                  cluster.stream(rank)));
      }
    ASSERT_NCCL(ncclGroupEnd());
    cluster.synchronize();
    for (const DeviceBuffer& buffer : buffers)
      ASSERT_EQ(buffer.read(), expected(ncclInt32, ncclSum, kCount, kRanks)) << algorithms;
  }
}

TEST(Nvls, SuspendedCommunicatorsGoOnByTheirTeam) {
  TeamCluster team(3);
  Cluster& cluster = *team;
  ASSERT_NO_FATAL_FAILURE(check(cluster, {Call::AllReduce, ncclFloat, ncclSum, 9999, false}));
  const auto all = [&](ncclResult_t (*call)(ncclComm_t)) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] { EXPECT_NCCL(call(cluster.comm(rank))); });
    for (std::thread& thread : threads) thread.join();
  };
  for (int i = 0; i < 2; ++i) {
    all([](ncclComm_t comm) { return ncclCommSuspend(comm, NCCL_SUSPEND_MEM); });
    all(ncclCommResume);
    for (const Call call : kCalls)
      ASSERT_NO_FATAL_FAILURE(check(cluster, {call, ncclFloat, ncclSum, 9999, false}));
  }
}

// ---- communicators of the same ranks, which share a team

/// Communicators of one rank each, with streams and buffers of their own.
class Siblings {
 public:
  static constexpr size_t kCount = 60'000;
  /// Splits all of `parents`; the ranks are in the same or in the opposite order.
  explicit Siblings(const std::vector<ncclComm_t>& parents, bool is_reversed = false)
      : Siblings(split(parents, is_reversed)) {}
  /// Communicators that are there.
  struct Made {
    std::vector<ncclComm_t> comms;
  };
  explicit Siblings(Made made) : comms_(std::move(made.comms)), streams_(comms_.size()) {
    for (int i = 0; i < nranks(); ++i) {
      EXPECT_CUDA(cudaSetDevice(i));
      EXPECT_CUDA(
          cudaStreamCreateWithFlags(&streams_[static_cast<size_t>(i)], cudaStreamNonBlocking));
      buffers_.emplace_back(i, kCount * sizeof(float));
    }
  }
  Siblings(Siblings&&) = default;
  ~Siblings() {
    destroy();
    for (const cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamDestroy(stream));
  }
  const std::vector<ncclComm_t>& comms() const { return comms_; }

  /// An all-reduce in place, of all ranks or of the first ones.
  void start(size_t ranks) {
    for (size_t i = 0; i < ranks; ++i)
      buffers_[i].write(input(ncclFloat, ncclSum, static_cast<int>(i), kCount, nranks()));
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks; ++i)
      EXPECT_NCCL(ncclAllReduce(buffers_[i].data(), buffers_[i].data(), kCount, ncclFloat, ncclSum,
                                comms_[i], streams_[i]));
    EXPECT_NCCL(ncclGroupEnd());
  }
  void start() { start(comms_.size()); }
  void expect_sums() {
    const Bytes want = expected(ncclFloat, ncclSum, kCount, nranks());
    for (size_t i = 0; i < comms_.size(); ++i) {
      EXPECT_CUDA(cudaStreamSynchronize(streams_[i]));
      EXPECT_TRUE(buffers_[i].read() == want && buffers_[i].guards_are_intact()) << "rank " << i;
    }
  }
  void reduce() {
    start();
    expect_sums();
  }
  void destroy() { end(ncclCommDestroy); }
  void abort() { end(ncclCommAbort); }

 private:
  static Made split(const std::vector<ncclComm_t>& parents, bool is_reversed) {
    const ScopedAlgorithms by_team("NVLS");
    Made made{std::vector<ncclComm_t>(parents.size())};
    const int n = static_cast<int>(parents.size());
    EXPECT_NCCL(ncclGroupStart());
    for (int i = 0; i < n; ++i)
      EXPECT_NCCL(ncclCommSplit(parents[static_cast<size_t>(i)], 0, is_reversed ? n - i : i,
                                &made.comms[static_cast<size_t>(i)], nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    return made;
  }
  int nranks() const { return static_cast<int>(streams_.size()); }
  void end(ncclResult_t (*end_one)(ncclComm_t)) {
    for (ncclComm_t& comm : comms_) {
      if (comm == nullptr) continue;
      EXPECT_NCCL(end_one(std::exchange(comm, nullptr)));
    }
  }
  std::vector<ncclComm_t> comms_;
  std::vector<cudaStream_t> streams_;
  std::vector<DeviceBuffer> buffers_;
};

TEST(SharedTeam, CommunicatorsWorkAtOnce) {
  TeamCluster team(4);
  std::vector<Siblings> all;
  all.reserve(3);
  all.emplace_back((*team).comms());
  all.emplace_back((*team).comms(), /*is_reversed=*/true);
  all.emplace_back(all[1].comms());  // a split of a split
  for (int round = 0; round < 10; ++round) {
    for (Siblings& siblings : all) siblings.start();
    ASSERT_NO_FATAL_FAILURE(check(*team, {Call::AllReduce, ncclFloat, ncclSum, 70'001, false}));
    for (Siblings& siblings : all) siblings.expect_sums();
  }
}

TEST(SharedTeam, OutlivesTheCommunicatorThatMadeIt) {
  std::optional<TeamCluster> team(3);
  Siblings child((**team).comms());
  child.reduce();
  team.reset();
  child.reduce();
  Siblings grandchild(child.comms());
  grandchild.reduce();
  child.destroy();
  grandchild.reduce();
}

TEST(SharedTeam, HasRoomAgainWhenASplitEnds) {
  TeamCluster team(3);
  for (int round = 0; round < 20; ++round) {
    Siblings child((*team).comms());
    child.reduce();
    ASSERT_NO_FATAL_FAILURE(check(*team, {Call::AllReduce, ncclFloat, ncclSum, 9999, false}));
  }
}

// More than have parts: the further ones have teams of their own.
TEST(SharedTeam, HasNoRoomForAnyNumberOfSplits) {
  TeamCluster team(2);
  std::vector<Siblings> all;
  all.reserve(12);
  for (int i = 0; i < 12; ++i) all.emplace_back((*team).comms());
  for (Siblings& siblings : all) siblings.start();
  for (Siblings& siblings : all) siblings.expect_sums();
}

// Two communicators of one team split at the same time, on each rank in an order of its own: one
// part is never given to both.
TEST(SharedTeam, SplitsAtOnceHaveDifferentParts) {
  constexpr size_t kRanks = 3;
  TeamCluster team(kRanks);
  Siblings child((*team).comms());
  const ScopedAlgorithms by_team("NVLS");
  for (int round = 0; round < 10; ++round) {
    const std::vector<ncclComm_t>* const parents[] = {&(*team).comms(), &child.comms()};
    Siblings::Made made[2];
    for (Siblings::Made& of : made) of.comms.resize(kRanks);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (size_t i = 0; i < 2; ++i)
        threads.emplace_back([&, rank, i] {
          EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
          EXPECT_NCCL(ncclCommSplit((*parents[i])[rank], 0, 0, &made[i].comms[rank], nullptr));
        });
    for (std::thread& thread : threads) thread.join();
    Siblings one(std::move(made[0])), two(std::move(made[1]));
    one.start();
    two.start();
    child.reduce();
    one.expect_sums();
    two.expect_sums();
  }
}

TEST(SharedTeam, OutlivesAnAbort) {
  std::optional<TeamCluster> team(3);
  Siblings one((**team).comms()), two((**team).comms());
  one.reduce();
  one.start(2);  // the last rank does not come
  two.reduce();
  one.abort();
  two.reduce();
  ASSERT_NO_FATAL_FAILURE(check(**team, {Call::AllReduce, ncclFloat, ncclSum, 70'001, false}));
  Siblings three((**team).comms());  // in the part of the aborted one
  three.reduce();
  (**team).abort();
  two.reduce();
  three.reduce();
}

TEST(SharedTeam, SuspendsOneCommunicatorAndNoOther) {
  TeamCluster team(2);
  Siblings child((*team).comms());
  const auto all = [&](auto&& call) {
    std::vector<std::thread> threads;
    for (const ncclComm_t comm : child.comms())
      threads.emplace_back([&call, comm] { EXPECT_NCCL(call(comm)); });
    for (std::thread& thread : threads) thread.join();
  };
  all([](ncclComm_t comm) { return ncclCommSuspend(comm, NCCL_SUSPEND_MEM); });
  ASSERT_NO_FATAL_FAILURE(check(*team, {Call::AllReduce, ncclFloat, ncclSum, 9999, false}));
  all(ncclCommResume);
  child.reduce();
}

TEST(Nvls, NamedNotAtAllItIsNotTaken) {
  TeamCluster team(3, "^NVLS");
  for (const Call call : kCalls)
    ASSERT_NO_FATAL_FAILURE(check(*team, {call, ncclFloat, ncclSum, 9999, false}));
}

}  // namespace
}  // namespace niccolite::test
