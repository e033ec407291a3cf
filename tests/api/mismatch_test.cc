// Ranks that call different things: every rank is told, by ncclInvalidUsage and a sentence with
// both calls and both ranks, instead of waiting for ever.

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Issue = std::function<ncclResult_t(void* in, void* out, ncclComm_t, cudaStream_t)>;

constexpr size_t kBytes = 2 << 20;  // of each rank's buffers

Issue all_reduce(size_t count, ncclDataType_t type = ncclFloat, ncclRedOp_t op = ncclSum) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(in, out, count, type, op, comm, stream);
  };
}
/// By at most so many CTAs, as the call asks for itself.
Issue all_reduce_by(int ctas) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.maxCTAs = ctas;
    return ncclAllReduceConfig(in, out, 1000, ncclFloat, ncclSum, comm, stream, &config);
  };
}
Issue broadcast(size_t count, int root) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(in, out, count, ncclFloat, root, comm, stream);
  };
}
Issue reduce(size_t count, int root) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    return ncclReduce(in, out, count, ncclFloat, ncclSum, root, comm, stream);
  };
}
Issue all_gather(size_t count) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(in, out, count, ncclFloat, comm, stream);
  };
}
Issue reduce_scatter(size_t count) {
  return [=](void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream);
  };
}

struct Difference {
  const char* name;
  Issue common;  // of all ranks but the last
  Issue odd;     // of the last rank
  std::string common_text, odd_text;
};

std::vector<Difference> differences() {
  return {
      {"kind", all_reduce(1000), broadcast(1000, 0), "ncclAllReduce(count 1000, float, sum)",
       "ncclBroadcast(count 1000, float, root 0)"},
      {"kind of equal shape", all_gather(500), reduce_scatter(500),
       "ncclAllGather(count 500, float)", "ncclReduceScatter(count 500, float, sum)"},
      {"count", all_reduce(1000), all_reduce(1001), "ncclAllReduce(count 1000, float, sum)",
       "ncclAllReduce(count 1001, float, sum)"},
      {"count by far", all_reduce(1), all_reduce(500'000), "ncclAllReduce(count 1, float, sum)",
       "ncclAllReduce(count 500000, float, sum)"},
      {"type", all_reduce(1000), all_reduce(1000, ncclInt32),
       "ncclAllReduce(count 1000, float, sum)", "ncclAllReduce(count 1000, int32, sum)"},
      {"operation", all_reduce(1000), all_reduce(1000, ncclFloat, ncclMax),
       "ncclAllReduce(count 1000, float, sum)", "ncclAllReduce(count 1000, float, max)"},
      {"settings of the call", all_reduce_by(2), all_reduce_by(1),
       "ncclAllReduce(count 1000, float, sum, config ",
       "ncclAllReduce(count 1000, float, sum, config "},
      {"root of a broadcast", broadcast(1000, 0), broadcast(1000, 1),
       "ncclBroadcast(count 1000, float, root 0)", "ncclBroadcast(count 1000, float, root 1)"},
      {"root of a reduction", reduce(1000, 1), reduce(1000, 0),
       "ncclReduce(count 1000, float, sum, root 1)", "ncclReduce(count 1000, float, sum, root 0)"},
  };
}

bool wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A communicator whose ranks do not agree.
class Quarrel {
 public:
  explicit Quarrel(int nranks) : cluster_(nranks) {
    for (int rank = 0; rank < nranks; ++rank) {
      inputs_.emplace_back(rank, kBytes);
      outputs_.emplace_back(rank, kBytes);
    }
  }

  /// The first rank to leave may find the quarrel when it does.
  ~Quarrel() {
    for (const ncclResult_t result : cluster_.destroy())
      EXPECT_TRUE(result == ncclSuccess || result == ncclInvalidUsage) << result;
  }

  int nranks() const { return cluster_.nranks(); }
  Cluster& cluster() { return cluster_; }

  void issue(int rank, const Issue& call) {
    EXPECT_CUDA(cudaSetDevice(rank));
    const auto r = static_cast<size_t>(rank);
    const ncclResult_t result =
        call(inputs_[r].data(), outputs_[r].data(), cluster_.comm(rank), cluster_.stream(rank));
    // The quarrel may have been noticed already.
    EXPECT_TRUE(result == ncclSuccess || result == ncclInvalidUsage) << ncclGetLastError(nullptr);
  }

  /// Waits until every rank knows.
  void await() {
    for (int rank = 0; rank < nranks(); ++rank) {
      ncclResult_t state = ncclSuccess;
      EXPECT_TRUE(wait_until([&] {
        EXPECT_EQ(ncclCommGetAsyncError(cluster_.comm(rank), &state), ncclSuccess);
        return state != ncclSuccess;
      })) << "rank "
          << rank << " was not told";
      EXPECT_EQ(state, ncclInvalidUsage) << "rank " << rank;
    }
  }

  /// What each rank then says of itself.
  std::vector<std::string> verdicts() {
    await();
    std::vector<std::string> texts;
    for (int rank = 0; rank < nranks(); ++rank) texts.push_back(last_error_of(rank));
    cluster_.abort();
    cluster_.synchronize();  // all kernels have ended
    return texts;
  }

 private:
  /// The last error is the process's: a thread of another quarrel may put its own there once, right
  /// after the call. So the rank's own is what two calls give.
  std::string last_error_of(int rank) {
    const auto call = [&] {
      int count = 0;  // any call
      EXPECT_EQ(ncclCommCount(cluster_.comm(rank), &count), ncclInvalidUsage);
      return std::string(ncclGetLastError(nullptr));
    };
    std::string last = call();
    for (std::string next = call(); next != last; next = call()) last = next;
    return last;
  }

  Cluster cluster_;
  std::vector<DeviceBuffer> inputs_, outputs_;
};

/// Sets NCCL_PROTO for the communicators that are made in its lifetime.
class ScopedProtocol {
 public:
  explicit ScopedProtocol(const char* name) {
    if (*name != '\0') setenv("NCCL_PROTO", name, 1);
  }
  ~ScopedProtocol() { unsetenv("NCCL_PROTO"); }
};

class Mismatch : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Mismatch, IsToldToEveryRankWithBothCalls) {
  const auto& [nranks, protocol] = GetParam();
  const std::vector<Difference> all = differences();
  std::vector<std::unique_ptr<Quarrel>> quarrels;  // at once: some take a second to be noticed
  {
    const ScopedProtocol scoped(protocol);
    for (size_t i = 0; i < all.size(); ++i) quarrels.push_back(std::make_unique<Quarrel>(nranks));
  }
  for (size_t i = 0; i < all.size(); ++i)
    for (int rank = 0; rank < nranks; ++rank)
      quarrels[i]->issue(rank, rank == nranks - 1 ? all[i].odd : all[i].common);
  for (const auto& quarrel : quarrels) quarrel->await();
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    const std::string odd_rank = "rank " + std::to_string(nranks - 1) + " ";
    for (const std::string& text : quarrels[i]->verdicts()) {
      EXPECT_THAT(text, AllOf(HasSubstr(all[i].common_text), HasSubstr(all[i].odd_text)));
      EXPECT_THAT(text, AllOf(HasSubstr(odd_rank + "called " + all[i].odd_text),
                              testing::ContainsRegex("rank [0-9] called ")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Mismatch,
                         testing::Combine(testing::Values(2, 3, 5),
                                          testing::Values("", "Simple", "LL128")));

TEST(MismatchOfMessages, NamesBothSizes) {
  std::vector<std::unique_ptr<Quarrel>> quarrels;
  const std::pair<size_t, size_t> sizes[] = {
      {1000, 2000}, {2000, 1999}, {1, 500'000}, {500'000, 8}};
  for (const auto& [sent, received] : sizes) {
    quarrels.push_back(std::make_unique<Quarrel>(3));
    const size_t of_sender = sent, of_receiver = received;
    // The third rank is in a collective that the other two do not come to.
    quarrels.back()->issue(2, all_reduce(10));
    quarrels.back()->issue(0, [&](void* in, void*, ncclComm_t comm, cudaStream_t stream) {
      return ncclSend(in, of_sender, ncclFloat, 1, comm, stream);
    });
    quarrels.back()->issue(1, [&](void*, void* out, ncclComm_t comm, cudaStream_t stream) {
      return ncclRecv(out, of_receiver, ncclFloat, 0, comm, stream);
    });
  }
  for (size_t i = 0; i < quarrels.size(); ++i) {
    const std::string sent = std::to_string(sizes[i].first);
    const std::string received = std::to_string(sizes[i].second);
    for (const std::string& text : quarrels[i]->verdicts())
      EXPECT_THAT(text, AllOf(HasSubstr("rank 0 sends " + std::to_string(4 * sizes[i].first)),
                              HasSubstr("ncclSend(count " + sent),
                              HasSubstr("receives " + std::to_string(4 * sizes[i].second)),
                              HasSubstr("ncclRecv(count " + received)));
  }
}

TEST(DeadlockOfMessages, IsToldToEveryRank) {
  // Without a group, each waits for the other to receive (or to send) first.
  constexpr size_t kCount = 4 << 20;  // more than connections hold
  for (const bool is_send : {true, false}) {
    Quarrel quarrel(2);
    std::vector<DeviceBuffer> buffers;
    for (int rank : {0, 1}) buffers.emplace_back(rank, kCount * sizeof(float));
    for (const bool sends_now : {is_send, !is_send}) {
      for (int rank : {0, 1}) {
        quarrel.issue(rank, [&](void*, void*, ncclComm_t comm, cudaStream_t stream) {
          void* const data = buffers[static_cast<size_t>(rank)].data();
          return sends_now ? ncclSend(data, kCount, ncclFloat, 1 - rank, comm, stream)
                           : ncclRecv(data, kCount, ncclFloat, 1 - rank, comm, stream);
        });
      }
    }
    const std::string call = is_send ? "ncclSend" : "ncclRecv";
    for (const std::string& text : quarrel.verdicts())
      EXPECT_THAT(text,
                  AllOf(HasSubstr("rank 0 waits in " + call + "(count 4194304, float, peer 1)"),
                        HasSubstr("rank 1 waits in " + call + "(count 4194304, float, peer 0)"),
                        HasSubstr("none can go on")));
  }
}

TEST(MismatchOfOrder, NamesTheFirstCallsThatDiffer) {
  Quarrel quarrel(3);
  for (int rank = 0; rank < 3; ++rank) quarrel.issue(rank, all_reduce(7));
  for (int rank : {0, 1}) quarrel.issue(rank, broadcast(20, 0));
  for (int rank : {0, 1, 2}) quarrel.issue(rank, all_reduce(30));
  quarrel.issue(2, broadcast(20, 0));
  for (const std::string& text : quarrel.verdicts())
    EXPECT_THAT(text, AllOf(HasSubstr("rank 2 called ncclAllReduce(count 30, float, sum) as its "
                                      "collective #2"),
                            HasSubstr("called ncclBroadcast(count 20, float, root 0) as its "
                                      "collective #2")));
}

TEST(MismatchAndDestroy, EndsWhereverTheRanksAre) {
  // Ranks leave while others still find out, ask and are told.
  for (int round = 0; round < 6; ++round) {
    Quarrel quarrel(4);
    for (int rank = 0; rank < 4; ++rank)
      quarrel.issue(rank, rank == round % 4 ? all_reduce(11) : all_reduce(10));
    quarrel.cluster().destroy_failed(ncclInvalidUsage);
    quarrel.cluster().synchronize();
  }
}

TEST(MismatchAndDestroy, IsFoundWhenNobodyWaits) {
  // Each rank takes itself for the root, and all destroy at once.
  Quarrel quarrel(3);
  for (int rank = 0; rank < 3; ++rank) quarrel.issue(rank, broadcast(8, rank));
  bool was_found = false;  // by the watchdog, where calling took a second
  for (int rank = 0; rank < 3; ++rank) {
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(quarrel.cluster().comm(rank), &state));
    was_found = was_found || state == ncclInvalidUsage;
  }
  const std::vector<ncclResult_t> results = quarrel.cluster().destroy();
  if (!was_found) {
    EXPECT_THAT(results, testing::Contains(ncclInvalidUsage));
  }
  EXPECT_THAT(
      ncclGetLastError(nullptr),
      testing::ContainsRegex("rank [0-2] called ncclBroadcast\\(count 8, float, root [0-2]\\) "
                             "as its collective #1 while rank [0-2] called ncclBroadcast"));
}

TEST(MismatchAndDestroy, IsFoundByTheLastThatLeaves) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 64);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_NCCL(ncclBroadcast(buffer.data(), buffer.data(), 8, ncclFloat, 0, cluster.comm(0),
                            cluster.stream(0)));
  std::swap(cluster.comms()[0], cluster.comms()[1]);  // rank 1 leaves first
  EXPECT_THAT(cluster.destroy(), testing::ElementsAre(ncclSuccess, ncclInvalidUsage));
  EXPECT_THAT(ncclGetLastError(nullptr),
              HasSubstr("rank 0 called ncclBroadcast(count 8, float, root 0) as its collective #1, "
                        "which rank 1 did not"));
}

// As often as would be enough for any wait to end that were to end by itself.
bool goes_on_waiting(cudaStream_t stream) {
  for (int look = 0; look < 100; ++look) {
    const cudaError_t state = cudaStreamQuery(stream);
    EXPECT_TRUE(state == cudaErrorNotReady || state == cudaSuccess);
    if (state == cudaSuccess) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST_P(Mismatch, NeverLooksDone) {
  const auto& [nranks, protocol] = GetParam();
  const ScopedProtocol scoped(protocol);
  Quarrel quarrel(nranks);
  for (int rank = 0; rank < nranks; ++rank) {
    quarrel.issue(rank, all_reduce(rank == nranks - 1 ? 1001 : 1000));
    quarrel.issue(rank, all_reduce(2000));
  }
  quarrel.await();
  for (int rank = 0; rank < nranks; ++rank) {
    EXPECT_TRUE(goes_on_waiting(quarrel.cluster().stream(rank))) << "rank " << rank;
    EXPECT_EQ(ncclCommFinalize(quarrel.cluster().comm(rank)), ncclInvalidUsage);
    EXPECT_EQ(cudaStreamQuery(quarrel.cluster().stream(rank)), cudaErrorNotReady);
  }
  // While its stream is waited for.
  std::thread aborts([&] { quarrel.cluster().abort(); });
  quarrel.cluster().synchronize();
  aborts.join();
}

TEST(MismatchAfterGroupStart, IsWhatTheEndOfTheGroupReturns) {
  Quarrel quarrel(2);
  float* const buffer = nullptr;
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclAllReduce(buffer, buffer, 0, ncclFloat, ncclSum, quarrel.cluster().comm(0),
                            quarrel.cluster().stream(0)));
  ASSERT_CUDA(cudaSetDevice(0));
  const DeviceBuffer data(0, 4096);
  ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, ncclSum,
                            quarrel.cluster().comm(0), quarrel.cluster().stream(0)));
  std::thread others([&] {
    quarrel.issue(0, all_reduce(10));
    quarrel.issue(1, all_reduce(11));
    quarrel.await();
  });
  others.join();
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  quarrel.cluster().abort();
}

TEST(MismatchOfGraphs, IsToldToEveryRank) {
  // The second pair is carried by different protocols: no rank sees anything of the other's.
  const std::pair<size_t, size_t> counts[] = {{100, 101}, {1, 500'000}};
  for (const auto& [common, odd] : counts) {
    constexpr int kRanks = 3;
    Quarrel quarrel(kRanks);
    std::vector<cudaGraphExec_t> graphs(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_CUDA(cudaSetDevice(rank));
      const cudaStream_t stream = quarrel.cluster().stream(rank);
      ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      quarrel.issue(rank, all_reduce(50));
      quarrel.issue(rank, all_reduce(rank == 1 ? odd : common));
      cudaGraph_t graph = nullptr;
      ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
      ASSERT_CUDA(cudaGraphInstantiate(&graphs[static_cast<size_t>(rank)], graph, 0));
      ASSERT_CUDA(cudaGraphDestroy(graph));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_CUDA(cudaSetDevice(rank));
      ASSERT_CUDA(
          cudaGraphLaunch(graphs[static_cast<size_t>(rank)], quarrel.cluster().stream(rank)));
    }
    for (const std::string& text : quarrel.verdicts())
      EXPECT_THAT(text, AllOf(HasSubstr("rank 1"),
                              HasSubstr("ncclAllReduce(count " + std::to_string(common) + ","),
                              HasSubstr("ncclAllReduce(count " + std::to_string(odd) + ","),
                              HasSubstr("in a graph")));
    for (cudaGraphExec_t graph : graphs) EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }
}

TEST(MismatchOfGraphs, IsNoneWhenOneRankReplaysWhatAnotherCalls) {
  constexpr int kRanks = 2;
  Quarrel agreement(kRanks);
  const cudaStream_t stream = agreement.cluster().stream(0);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  agreement.issue(0, all_reduce(100));
  agreement.issue(0, broadcast(200, 1));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  for (int round = 0; round < 10; ++round) {
    ASSERT_CUDA(cudaGraphLaunch(executable, stream));
    agreement.issue(1, all_reduce(100));
    agreement.issue(1, broadcast(200, 1));
    for (int rank : {0, 1}) agreement.issue(rank, all_reduce(300 + static_cast<size_t>(round)));
  }
  agreement.cluster().synchronize();
  for (int rank : {0, 1}) {
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(agreement.cluster().comm(rank), &state));
    EXPECT_EQ(state, ncclSuccess) << ncclGetLastError(nullptr);
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
}

}  // namespace
}  // namespace niccolite::test
