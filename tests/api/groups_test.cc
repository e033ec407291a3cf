// Groups: any pattern of messages, mixtures with collectives, several streams, several
// communicators, errors inside, simulation.

#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "tests/api/ranges.h"
#include "tests/api/trial.h"
#include "tests/api/working.h"

namespace niccolite::test {
namespace {

using Trials = std::vector<std::unique_ptr<Trial>>;

Trials trials_of(const std::vector<Operation>& operations, int nranks) {
  Trials trials;
  for (size_t i = 0; i < operations.size(); ++i) {
    Operation operation = operations[i];
    operation.salt = i;
    trials.push_back(std::make_unique<Trial>(operation, nranks));
  }
  return trials;
}

// All calls of all ranks in one group of one thread.
void run_in_one_group(Cluster& cluster, const Trials& trials) {
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    for (const auto& trial : trials)
      if (trial->takes_part(rank)) {
        ASSERT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank)));
      }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (const auto& trial : trials) ASSERT_TRUE(trial->is_right());
}

Operation message(int from, int to, size_t bytes) {
  return {Kind::Message, ncclUint8, ncclSum, bytes, from, to};
}

TEST(Messages, OfEveryPatternArrive) {
  for (int n : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(testing::Message() << n << " ranks");
    Cluster cluster(n);
    std::vector<Operation> to_self, all_to_all, ring, neighbours, gather, scatter, twice;
    for (int rank = 0; rank < n; ++rank) {
      to_self.push_back(message(rank, rank, 1000 + static_cast<size_t>(rank)));
      ring.push_back(message(rank, (rank + 1) % n, 70'001));
      gather.push_back(message(rank, 0, 333));
      scatter.push_back(message(0, rank, 4096));
      if (rank > 0) neighbours.push_back(message(rank, rank - 1, 12'345));
      if (rank < n - 1) neighbours.push_back(message(rank, rank + 1, 54'321));
      for (int peer = 0; peer < n; ++peer) {
        all_to_all.push_back(message(rank, peer, 5000));
        for (size_t bytes : {size_t{20'000}, size_t{3}, size_t{0}, size_t{900'000}})
          twice.push_back(message(rank, peer, bytes));
      }
    }
    for (const auto& pattern : {to_self, all_to_all, ring, neighbours, gather, scatter, twice})
      ASSERT_NO_FATAL_FAILURE(run_in_one_group(cluster, trials_of(pattern, n)));
  }
}

TEST(Messages, OfManyPeersArrive) {
  constexpr int kRanks = 8;  // virtual GPUs there are; more ranks: multi_process and perf
  Cluster cluster(kRanks);
  std::vector<Operation> operations;
  for (int repetition = 0; repetition < 5; ++repetition)
    for (int from = 0; from < kRanks; ++from)
      for (int to = 0; to < kRanks; ++to)
        operations.push_back(message(from, to, static_cast<size_t>(7 * repetition + from + to)));
  ASSERT_NO_FATAL_FAILURE(run_in_one_group(cluster, trials_of(operations, kRanks)));
}

TEST(Messages, BetweenOnePairAreMatchedInOrder) {
  Cluster cluster(2);
  std::vector<Operation> operations;
  for (size_t i = 0; i < 40; ++i) operations.push_back(message(0, 1, 100));
  const Trials trials = trials_of(operations, 2);
  // The sender in one group, the receiver call by call.
  std::thread sender([&] {
    EXPECT_NCCL(ncclGroupStart());
    for (const auto& trial : trials)
      EXPECT_NCCL(trial->call(0, cluster.comm(0), cluster.stream(0)));
    EXPECT_NCCL(ncclGroupEnd());
  });
  for (const auto& trial : trials) EXPECT_NCCL(trial->call(1, cluster.comm(1), cluster.stream(1)));
  sender.join();
  cluster.synchronize();
  for (const auto& trial : trials) EXPECT_TRUE(trial->is_right());
}

TEST(Messages, ToTheOwnRankNeedBothEndsInOneGroup) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 64);
  EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat, 0, cluster.comm(0), cluster.stream(0)),
            ncclInvalidUsage);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclSend(buffer.data(), 4, ncclFloat, 0, cluster.comm(0), cluster.stream(0)));
  EXPECT_NCCL(ncclRecv(buffer.data() + 16, 5, ncclFloat, 0, cluster.comm(0), cluster.stream(0)));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("16 bytes"), std::string::npos);
  EXPECT_TRUE(buffer.guards_are_intact());
}

TEST(Group, JoinsCollectivesOfEveryKindTypeAndSize) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  std::vector<Operation> operations;
  for (Kind kind : kCollectives)
    for (ncclDataType_t type : {ncclFloat, ncclInt8, ncclHalf})
      for (size_t count : {1u, 700u, 30'001u})
        operations.push_back({kind, type, ncclSum, count, 2});
  for (int i = 0; i < 50; ++i)
    operations.push_back({Kind::AllReduce, ncclFloat, ncclMax, static_cast<size_t>(i + 1)});
  ASSERT_NO_FATAL_FAILURE(run_in_one_group(cluster, trials_of(operations, kRanks)));
}

TEST(Group, MixesMessagesAndCollectives) {
  constexpr int kRanks = 4;
  Cluster cluster(kRanks);
  std::vector<Operation> operations;
  for (int rank = 0; rank < kRanks; ++rank) {
    operations.push_back(message(rank, (rank + 1) % kRanks, 9999));
    operations.push_back({Kind::AllReduce, ncclFloat, ncclSum, 5000});
    operations.push_back(message((rank + 2) % kRanks, rank, 100'000));
    operations.push_back({Kind::Broadcast, ncclInt8, ncclSum, 400, rank});
  }
  ASSERT_NO_FATAL_FAILURE(run_in_one_group(cluster, trials_of(operations, kRanks)));
}

// What a group of the same calls launched before is launched again, with other buffers.
TEST(Group, OfTheSameCallsMovesTheBuffersOfEachTime) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  const auto mix = [](ncclRedOp_t op, size_t bytes) {
    std::vector<Operation> operations{{Kind::AllReduce, ncclFloat, op, 2000},
                                      {Kind::AllGather, ncclInt32, ncclSum, 300},
                                      {Kind::ReduceScatter, ncclFloat, op, 70'000}};
    for (int rank = 0; rank < kRanks; ++rank) {
      operations.push_back(message(rank, (rank + 1) % kRanks, bytes));
      operations.push_back(message(rank, (rank + 1) % kRanks, 10));
      operations.push_back(
          message(rank, rank, bytes));  // its input is one call's, its output another's
      operations.push_back(message(rank, rank, 7));
    }
    return operations;
  };
  for (int time = 0; time < 3; ++time) {
    for (const ncclRedOp_t op : {ncclSum, ncclMax}) {
      for (const size_t bytes : {size_t{5}, size_t{100'000}}) {
        const Trials trials = trials_of(mix(op, bytes), kRanks);
        ASSERT_NO_FATAL_FAILURE(run_in_one_group(cluster, trials)) << "time " << time;
      }
    }
  }
}

TEST(Group, JoinsDifferentStreamsOfOneCommunicator) {
  constexpr int kRanks = 2;
  Cluster cluster(kRanks);
  constexpr size_t kStreams = 3;
  std::vector<cudaStream_t> streams;  // [rank][kStreams]
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    for (size_t i = 0; i < kStreams; ++i) {
      streams.emplace_back();
      ASSERT_CUDA(cudaStreamCreateWithFlags(&streams.back(), cudaStreamNonBlocking));
    }
  }
  std::vector<Operation> operations;
  for (size_t i = 0; i < 12; ++i) {
    operations.push_back({Kind::AllReduce, ncclInt32, ncclSum, 1000 + i});
    operations.push_back(message(0, 1, 3000 * i));
    operations.push_back(message(1, 1, 300 * i));
  }
  const Trials trials = trials_of(operations, kRanks);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank)
    for (size_t i = 0; i < trials.size(); ++i)
      if (trials[i]->takes_part(rank)) {
        ASSERT_NCCL(trials[i]->call(rank, cluster.comm(rank),
                                    streams[static_cast<size_t>(rank) * kStreams + i % kStreams]));
      }
  ASSERT_NCCL(ncclGroupEnd());
  // Each stream waits for the operations that were given to it, and may be used by itself.
  for (int rank = 0; rank < kRanks; ++rank)
    for (size_t i = 0; i < kStreams; ++i)
      ASSERT_CUDA(cudaStreamSynchronize(streams[static_cast<size_t>(rank) * kStreams + i]));
  for (const auto& trial : trials) EXPECT_TRUE(trial->is_right());
  for (cudaStream_t stream : streams) ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST(Group, HoldsSeveralCommunicatorsOfTheSameDevices) {
  constexpr int kRanks = 3;
  Cluster first(kRanks), second(kRanks);
  const Trials on_first = trials_of({{Kind::AllReduce, ncclFloat, ncclSum, 40'001},
                                     message(0, 2, 5000),
                                     {Kind::AllGather, ncclFloat, ncclSum, 100}},
                                    kRanks);
  const Trials on_second = trials_of({{Kind::AllToAll, ncclFloat, ncclSum, 777},
                                      message(2, 0, 200'000),
                                      {Kind::Reduce, ncclFloat, ncclSum, 100, 1}},
                                     kRanks);
  for (int repetition = 0; repetition < 10; ++repetition) {
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank)
      for (size_t i = 0; i < on_first.size(); ++i) {
        if (on_first[i]->takes_part(rank)) {
          ASSERT_NCCL(on_first[i]->call(rank, first.comm(rank), first.stream(rank)));
        }
        if (on_second[i]->takes_part(rank)) {
          ASSERT_NCCL(on_second[i]->call(rank, second.comm(rank), second.stream(rank)));
        }
      }
    ASSERT_NCCL(ncclGroupEnd());
  }
  first.synchronize();
  second.synchronize();
  for (const auto& trial : on_first) EXPECT_TRUE(trial->is_right());
  for (const auto& trial : on_second) EXPECT_TRUE(trial->is_right());
}

TEST(Group, NestsAndRunsAtTheOutermostEnd) {
  Cluster cluster(2);
  Trial trial({Kind::AllReduce, ncclFloat, ncclSum, 100}, 2);
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(trial.call(0, cluster.comm(0), cluster.stream(0)));
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(trial.call(1, cluster.comm(1), cluster.stream(1)));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_FALSE(trial.is_right());
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  EXPECT_TRUE(trial.is_right());
}

TEST(Group, WithAnErrorInsideLaunchesNothing) {
  Cluster cluster(2);
  Trial trial({Kind::AllReduce, ncclFloat, ncclSum, 100}, 2);
  DeviceBuffer buffer(0, 64);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_NCCL(trial.call(rank, cluster.comm(rank), cluster.stream(rank)));
  EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat, 7, cluster.comm(0), cluster.stream(0)),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  cluster.synchronize();
  EXPECT_FALSE(trial.is_right());
  // The thread is outside any group, and the communicators are as good as before.
  ASSERT_NO_FATAL_FAILURE(
      run_in_one_group(cluster, trials_of({{Kind::AllReduce, ncclFloat, ncclSum, 100}}, 2)));
}

TEST(Group, FailsWithTheLastErrorOfACallThatItRecords) {
  Cluster cluster(1);
  DeviceBuffer buffer(0, 4096);
  const auto reduce = [&](ncclDataType_t type, ncclRedOp_t op) {
    return ncclAllReduce(buffer.data(), buffer.data(), 1024, type, op, cluster.comm(0),
                         cluster.stream(0));
  };
  // Calls of other kinds are a matter of their own.
  ASSERT_NCCL(ncclGroupStart());
  void* memory = nullptr;
  EXPECT_NE(ncclMemAlloc(&memory, size_t{1} << 60), ncclSuccess);
  int rank = -1;
  EXPECT_EQ(ncclCommUserRank(nullptr, &rank), ncclInvalidArgument);
  EXPECT_NCCL(reduce(ncclFloat, ncclSum));
  EXPECT_NCCL(ncclGroupEnd());

  ASSERT_NCCL(ncclGroupStart());
  EXPECT_EQ(reduce(ncclNumTypes, ncclSum), ncclInvalidArgument);
  EXPECT_EQ(ncclBroadcast(buffer.data(), buffer.data(), 1024, ncclFloat, 7, cluster.comm(0),
                          cluster.stream(0)),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("root"), std::string::npos);
  cluster.synchronize();
}

// The background thread's stream of that name is another one.
TEST(Group, OfANonblockingCommunicatorUsesTheCallersOwnStream) {
  const ncclComm_t comm = make_nonblocking();
  Trial trial({Kind::AllReduce, ncclFloat, ncclSum, 1000}, 1);
  ASSERT_NCCL(trial.call(0, comm, cudaStreamPerThread));
  ASSERT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
  EXPECT_TRUE(trial.is_right());
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// The group has found it before, and need not look for it again, but for this.
TEST(Group, RefusesACommunicatorThatAnotherThreadHasEndedMeanwhile) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 64);
  const auto call = [&](int rank) {
    return ncclAllReduce(buffer.data(), buffer.data(), 4, ncclFloat, ncclSum, cluster.comm(rank),
                         cluster.stream(rank));
  };
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(call(0));
  ASSERT_NCCL(call(0));
  std::thread([&] { EXPECT_NCCL(ncclCommAbort(cluster.comm(0))); }).join();
  EXPECT_EQ(call(0), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  cluster.comms()[0] = nullptr;
  cluster.abort();
}

TEST(Group, WithAHalfMessageToItselfLaunchesNothing) {
  Cluster cluster(2);
  Trial trial({Kind::Broadcast, ncclFloat, ncclSum, 100}, 2);
  DeviceBuffer buffer(1, 64);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_NCCL(trial.call(rank, cluster.comm(rank), cluster.stream(rank)));
  EXPECT_NCCL(ncclRecv(buffer.data(), 4, ncclFloat, 1, cluster.comm(1), cluster.stream(1)));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  cluster.synchronize();
  EXPECT_FALSE(trial.is_right());
}

TEST(Group, IsCapturedAndReplayed) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  const Trials trials =
      trials_of({message(0, 1, 5000), message(1, 0, 100), message(2, 2, 64), message(0, 1, 9),
                 Operation{Kind::AllReduce, ncclFloat, ncclSum, 777},
                 Operation{Kind::AllReduce, ncclFloat, ncclSum, 10}},
                kRanks);
  std::vector<cudaGraphExec_t> graphs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
    ASSERT_NCCL(ncclGroupStart());
    for (const auto& trial : trials)
      if (trial->takes_part(rank)) {
        ASSERT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank)));
      }
    ASSERT_NCCL(ncclGroupEnd());
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(rank), &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[static_cast<size_t>(rank)], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  for (int replay = 0; replay < 4; ++replay) {
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

TEST(Simulation, PredictsWithoutRunning) {
  constexpr int kRanks = 2;
  Cluster cluster(kRanks);
  float before = 0;
  for (size_t count : {size_t{1000}, size_t{1'000'000}, size_t{4'000'000}}) {
    Trial trial({Kind::AllReduce, ncclFloat, ncclSum, count}, kRanks);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_NCCL(trial.call(rank, cluster.comm(rank), cluster.stream(rank)));
    ASSERT_NCCL(ncclGroupSimulateEnd(&info));
    cluster.synchronize();
    EXPECT_FALSE(trial.is_right());
    EXPECT_GT(info.estimatedTime, before);
    before = info.estimatedTime;
  }
}

TEST(Simulation, ThatFailsMakesNoCommunicator) {
  Cluster cluster(1);
  ASSERT_NCCL(ncclCommRevoke(cluster.comm(0), NCCL_REVOKE_DEFAULT));
  DeviceBuffer buffer(0, sizeof(int));
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t made = nullptr;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclCommInitRank(&made, 1, id, 0));
  ASSERT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), 1, ncclInt, ncclSum, cluster.comm(0),
                            cluster.stream(0)));
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
  EXPECT_EQ(made, nullptr);
}

TEST(Simulation, OfNothingAndOfBadArgumentsIsDefined) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT);
  info.magic = 0;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "a group is still open";
}

// ---- messages whose buffers overlap: an error where the user asks for it alone

class OverlapsOfMessages : public testing::Test {
 protected:
  static constexpr size_t kBytes = 100;
  void SetUp() override {
    if (std::getenv("NCCL_CHECK_POINTERS") == nullptr)
      GTEST_SKIP() << "runs with NCCL_CHECK_POINTERS=1, as api_test_checks";
  }

  enum class Is { Send, Receive };
  struct Message {
    Is is;
    size_t offset;
    size_t bytes = kBytes;
    int peer = 1;
  };
  /// Rank 0's share of a group; rank 1 has the other ends.
  ncclResult_t run(const std::vector<Message>& messages) {
    EXPECT_NCCL(ncclGroupStart());
    size_t apart = 0;  // rank 1 has places of its own
    for (const Message& each : messages) {
      unsigned char* const own = memory_.data() + each.offset;
      for (const int rank : {0, 1}) {
        if (rank == 1 && each.peer == 0) continue;
        const bool sends = (each.is == Is::Send) == (rank == 0);
        unsigned char* const buffer = rank == 0 ? own : other_.data() + apart;
        const int peer = rank == 0 ? each.peer : 0;
        EXPECT_NCCL(sends ? ncclSend(buffer, each.bytes, ncclUint8, peer, cluster_.comm(rank),
                                     cluster_.stream(rank))
                          : ncclRecv(buffer, each.bytes, ncclUint8, peer, cluster_.comm(rank),
                                     cluster_.stream(rank)));
      }
      apart += each.bytes;
    }
    const ncclResult_t ended = ncclGroupEnd();
    cluster_.synchronize();
    return ended;
  }
  std::string range(size_t offset, size_t bytes = kBytes) const {
    return range_of(memory_.data() + offset, bytes);
  }

  Cluster cluster_{2};
  DeviceBuffer memory_{0, 4096}, other_{1, 4096};
};

TEST_F(OverlapsOfMessages, AreRefusedOfTwoReceives) {
  EXPECT_EQ(run({{Is::Receive, 0}, {Is::Receive, 500}, {Is::Receive, 599}}), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr),
              testing::AllOf(testing::HasSubstr("ncclGroupEnd"),
                             testing::HasSubstr("recvbuff " + range(500) + " of rank 0, ncclRecv("),
                             testing::HasSubstr("overlaps recvbuff " + range(599) + " of rank 0"),
                             testing::HasSubstr("use memory that does not overlap")));
  EXPECT_NCCL(run({{Is::Receive, 0}, {Is::Receive, 500}, {Is::Receive, 600}}));
}

TEST_F(OverlapsOfMessages, AreRefusedOfASendAndAReceive) {
  for (const bool sends_first : {true, false}) {
    const Is first = sends_first ? Is::Send : Is::Receive;
    const Is second = sends_first ? Is::Receive : Is::Send;
    EXPECT_EQ(run({{first, 99}, {second, 0}}), ncclInvalidArgument);
    EXPECT_EQ(run({{first, 7}, {second, 7}}), ncclInvalidArgument);
    EXPECT_NCCL(run({{first, 100}, {second, 0}}));
  }
}

TEST_F(OverlapsOfMessages, AreFoundBehindLongerAndShorterOnes) {
  // The long one reaches beyond others that begin after it.
  EXPECT_EQ(run({{Is::Receive, 0, 1000}, {Is::Send, 2000}, {Is::Receive, 900, 50}}),
            ncclInvalidArgument);
  EXPECT_EQ(run({{Is::Send, 0, 1000}, {Is::Send, 10, 20}, {Is::Receive, 900, 50}}),
            ncclInvalidArgument);
}

TEST_F(OverlapsOfMessages, OfSendsAreNone) {
  EXPECT_NCCL(run({{Is::Send, 0}, {Is::Send, 50}, {Is::Send, 0}, {Is::Receive, 150}}));
}

TEST_F(OverlapsOfMessages, OfAMessageToOneselfInPlaceAreNone) {
  EXPECT_NCCL(run({{Is::Send, 0, kBytes, 0}, {Is::Receive, 0, kBytes, 0}, {Is::Receive, 100}}));
  EXPECT_EQ(run({{Is::Send, 0, kBytes, 0}, {Is::Receive, 10, kBytes, 0}}), ncclInvalidArgument);
}

TEST_F(OverlapsOfMessages, OfNoBytesAreNone) {
  EXPECT_NCCL(run({{Is::Receive, 50, 0}, {Is::Receive, 0}}));
}

TEST_F(OverlapsOfMessages, OfGroupsOneAfterTheOtherAreNone) {
  EXPECT_NCCL(run({{Is::Receive, 0}}));
  EXPECT_NCCL(run({{Is::Send, 0}}));
  EXPECT_NCCL(run({{Is::Receive, 0}}));
}

}  // namespace
}  // namespace niccolite::test
