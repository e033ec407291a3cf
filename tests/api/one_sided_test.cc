// Puts and signals between ranks of one process, and what programs do wrong with them.
#include <nccl_device.h>

#include <memory>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

constexpr size_t kCount = 100'000;  // 400,000 bytes: by the copy engine; 25,000 by a kernel

/// Ranks with a symmetric window of kCount ints each.
class OneSided {
 public:
  explicit OneSided(int nranks)
      : cluster(nranks), words_(size_t(nranks)), windows_(size_t(nranks)) {
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&words_[size_t(rank)]), 2 * kCount * 4));
      EXPECT_NCCL(ncclCommWindowRegister(comm(rank), words_[size_t(rank)], 2 * kCount * 4,
                                         &windows_[size_t(rank)], NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ~OneSided() {
    cluster.synchronize();
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      EXPECT_NCCL(ncclCommWindowDeregister(comm(rank), windows_[size_t(rank)]));
      EXPECT_NCCL(ncclMemFree(words_[size_t(rank)]));
    }
  }
  ncclComm_t comm(int rank) const { return cluster.comm(rank); }
  cudaStream_t stream(int rank) const { return cluster.stream(rank); }
  /// Where puts go; what is put lies behind it.
  int* words(int rank) const { return words_[size_t(rank)]; }
  int* source(int rank) const { return words(rank) + kCount; }
  ncclWindow_t window(int rank) const { return windows_[size_t(rank)]; }

  void fill_source(int rank, int value) const {
    const std::vector<int> values(kCount, value);
    EXPECT_CUDA(cudaMemcpy(source(rank), values.data(), kCount * 4, cudaMemcpyHostToDevice));
  }
  ncclResult_t put(int from, int to, size_t count, size_t at = 0) const {
    return ncclPutSignal(source(from), count, ncclInt, to, window(from), at * 4, 0, 0, 0,
                         comm(from), stream(from));
  }
  ncclResult_t wait(int rank, int peer, int count) const {
    ncclWaitSignalDesc_t descriptor{count, peer, 0, 0};
    return ncclWaitSignal(1, &descriptor, comm(rank), stream(rank));
  }
  std::vector<int> read(int rank, size_t count, size_t at = 0) const {
    std::vector<int> values(count);
    EXPECT_CUDA(cudaMemcpyAsync(values.data(), words(rank) + at, count * 4, cudaMemcpyDeviceToHost,
                                stream(rank)));
    EXPECT_CUDA(cudaStreamSynchronize(stream(rank)));
    return values;
  }

  Cluster cluster;

 private:
  std::vector<int*> words_;
  std::vector<ncclWindow_t> windows_;
};

TEST(OneSided, DataAreThereWhenTheSignalIs) {
  OneSided ranks(2);
  for (const size_t count : {size_t{1}, size_t{3}, size_t{25'000}, kCount}) {
    for (const size_t at : {size_t{0}, size_t{1}}) {
      if (at + count > kCount) continue;
      SCOPED_TRACE(testing::Message() << count << " at " << at);
      const int value = static_cast<int>(count + at);
      ranks.fill_source(0, value);
      // The wait first: it must not end before.
      ASSERT_NCCL(ranks.wait(1, 0, 1));
      ASSERT_NCCL(ranks.put(0, 1, count, at));
      EXPECT_EQ(ranks.read(1, count, at), std::vector<int>(count, value));
    }
  }
}

TEST(OneSided, SignalsAreCountedAndNeverLost) {
  OneSided ranks(3);
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_NCCL(ncclSignal(2, 0, 0, 0, ranks.comm(0), ranks.stream(0)));
    ASSERT_NCCL(ncclSignal(2, 0, 0, 0, ranks.comm(1), ranks.stream(1)));
    ASSERT_NCCL(ranks.put(1, 2, 1));
  }
  ranks.cluster.synchronize();
  // In other portions than they were sent, several peers at once.
  ncclWaitSignalDesc_t all[] = {{kRounds - 1, 0, 0, 0}, {2 * kRounds - 1, 1, 0, 0}, {1, 1, 0, 0}};
  ASSERT_NCCL(ncclWaitSignal(3, all, ranks.comm(2), ranks.stream(2)));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(2)));
  // One of rank 0 is left, and none of rank 1.
  ASSERT_NCCL(ranks.wait(2, 0, 1));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(2)));
  ASSERT_NCCL(ranks.wait(2, 1, 1));
  EXPECT_EQ(cudaStreamQuery(ranks.stream(2)), cudaErrorNotReady);
  ASSERT_NCCL(ncclSignal(2, 0, 0, 0, ranks.comm(1), ranks.stream(1)));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(2)));
}

TEST(OneSided, PutsOfSeveralStreamsAreAllCounted) {
  OneSided ranks(2);
  constexpr int kStreams = 4;
  constexpr int kRounds = 25;
  cudaStream_t streams[kStreams];
  ASSERT_CUDA(cudaSetDevice(0));
  for (cudaStream_t& stream : streams)
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int round = 0; round < kRounds; ++round)
    for (cudaStream_t stream : streams) ASSERT_NCCL(ncclSignal(1, 0, 0, 0, ranks.comm(0), stream));
  ASSERT_NCCL(ranks.wait(1, 0, kStreams * kRounds));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(1)));
  for (cudaStream_t stream : streams) ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST(OneSided, ARankSignalsItself) {
  OneSided ranks(1);
  ranks.fill_source(0, 9);
  ASSERT_NCCL(ranks.put(0, 0, 10));
  ASSERT_NCCL(ranks.wait(0, 0, 1));
  EXPECT_EQ(ranks.read(0, 10), std::vector<int>(10, 9));
}

// In any order of the calls of a group, all of one thread.
TEST(OneSided, GroupsPutBeforeTheyWait) {
  constexpr int kRanks = 4;
  OneSided ranks(kRanks);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.fill_source(rank, 100 + rank);
    ASSERT_NCCL(ranks.wait(rank, (rank + kRanks - 1) % kRanks, 1));
    ASSERT_NCCL(ranks.put(rank, (rank + 1) % kRanks, 1000));
    ASSERT_NCCL(ncclAllReduce(ranks.source(rank) + 5000, ranks.source(rank) + 5000, 1000, ncclInt,
                              ncclSum, ranks.comm(rank), ranks.stream(rank)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    const int from = (rank + kRanks - 1) % kRanks;
    EXPECT_EQ(ranks.read(rank, 1000), std::vector<int>(1000, 100 + from));
    EXPECT_EQ(ranks.read(rank, 1000, kCount + 5000), std::vector<int>(1000, 406));
  }
}

TEST(OneSided, GraphsPutSignalAndWaitAtEachLaunch) {
  OneSided ranks(2);
  cudaGraphExec_t graphs[2];
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal));
    if (rank == 0) {
      ASSERT_NCCL(ranks.put(0, 1, 2000));
    }
    ASSERT_NCCL(ranks.wait(rank, 1 - rank, 1));
    if (rank == 1) {
      ASSERT_NCCL(ranks.put(1, 0, kCount));
    }
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(ranks.stream(rank), &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[rank], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  for (int launch = 0; launch < 20; ++launch) {
    for (int rank = 0; rank < 2; ++rank) ranks.fill_source(rank, launch * 2 + rank);
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_CUDA(cudaGraphLaunch(graphs[rank], ranks.stream(rank)));
    EXPECT_EQ(ranks.read(0, kCount), std::vector<int>(kCount, launch * 2 + 1));
    EXPECT_EQ(ranks.read(1, 2000), std::vector<int>(2000, launch * 2));
  }
  for (cudaGraphExec_t graph : graphs) ASSERT_CUDA(cudaGraphExecDestroy(graph));
}

TEST(OneSided, AnAbortEndsAWait) {
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  cudaStream_t stream;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ncclWaitSignalDesc_t descriptor{1, 1, 0, 0};
  ASSERT_NCCL(ncclWaitSignal(1, &descriptor, comms[0], stream));
  for (const ncclComm_t comm : comms) ASSERT_NCCL(ncclCommAbort(comm));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST(OneSided, WhatIsWrongIsRefusedAndNamed) {
  OneSided ranks(2);
  DeviceBuffer plain(0, 64);
  const ncclComm_t comm = ranks.comm(0);
  const cudaStream_t stream = ranks.stream(0);
  const ncclWindow_t window = ranks.window(0);
  const void* const source = ranks.source(0);
  const auto put = [&](const void* from, size_t count, int peer, ncclWindow_t to, size_t offset,
                       int signal = 0, int context = 0, unsigned flags = 0) {
    return ncclPutSignal(from, count, ncclInt, peer, to, offset, signal, context, flags, comm,
                         stream);
  };
  const auto refused = [&](ncclResult_t result, const char* text) {
    EXPECT_EQ(result, ncclInvalidArgument) << text;
    const std::string message = ncclGetLastError(nullptr);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  const size_t whole = 2 * kCount * 4;
  refused(put(source, 1, 2, window, 0), "peer argument 2");
  refused(put(source, 1, -1, window, 0), "peer argument -1");
  refused(put(source, 1, 1, window, 0, 1), "sigIdx");
  refused(put(source, 1, 1, window, 0, 0, 1), "ctx");
  refused(put(source, 1, 1, window, 0, 0, 0, 1), "flags");
  refused(put(source, 2, 1, window, whole - 4), "rank 1's window");
  refused(put(source, 1, 1, window, whole + 4), "rank 1's window");
  refused(put(source, 1, 1, window, SIZE_MAX - 1), "rank 1's window");
  refused(put(source, SIZE_MAX / 2, 1, window, 0), "count");
  refused(put(source, 1, 1, ranks.window(1), 0), "peerWin");
  refused(put(source, 1, 1, nullptr, 0), "peerWin");
  refused(put(plain.data(), 1, 1, window, 0), "localbuff");
  refused(put(nullptr, 1, 1, window, 0), "localbuff");
  refused(put(ranks.source(0) + kCount - 1, 2, 1, window, 0), "localbuff");
  refused(ncclPutSignal(source, 1, ncclNumTypes, 1, window, 0, 0, 0, 0, comm, stream), "type");
  refused(ncclSignal(2, 0, 0, 0, comm, stream), "peer argument 2");
  refused(ncclSignal(1, 0, 0, 7, comm, stream), "flags");
  refused(ncclSignal(1, 0, 0, 0, nullptr, stream), "comm");
  ncclWaitSignalDesc_t good[] = {{1, 1, 0, 0}, {1, 1, 0, 0}};
  refused(ncclWaitSignal(0, good, comm, stream), "nDesc");
  refused(ncclWaitSignal(-1, good, comm, stream), "nDesc");
  refused(ncclWaitSignal(1, nullptr, comm, stream), "signalDescs");
  for (const ncclWaitSignalDesc_t& bad :
       {ncclWaitSignalDesc_t{0, 1, 0, 0}, {1, 2, 0, 0}, {1, 1, 1, 0}, {1, 1, 0, 1}}) {
    good[1] = bad;
    refused(ncclWaitSignal(2, good, comm, stream), "signalDescs[1]");
  }
  // Nothing was queued by any of them, and a count of 0 only signals.
  ASSERT_NCCL(put(nullptr, 0, 1, nullptr, 0));
  ASSERT_NCCL(ranks.wait(1, 0, 1));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(1)));
  ASSERT_NCCL(ranks.wait(1, 0, 1));
  EXPECT_EQ(cudaStreamQuery(ranks.stream(1)), cudaErrorNotReady);
  ASSERT_NCCL(ncclSignal(1, 0, 0, 0, comm, stream));
}

TEST(OneSided, IsRefusedWhereTheConfigurationHasNone) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.numRmaCtx = 0;
  ncclComm_t comm = nullptr;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  ncclComm_t child = nullptr;
  ASSERT_NCCL(ncclCommSplit(comm, 0, 0, &child, nullptr));
  for (ncclComm_t each : {comm, child}) {
    ncclWaitSignalDesc_t one{1, 0, 0, 0};
    EXPECT_EQ(ncclWaitSignal(1, &one, each, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclSignal(0, 0, 0, 0, each, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclPutSignal(nullptr, 1, ncclInt, 0, nullptr, 0, 0, 0, 0, each, nullptr),
              ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("numRmaCtx"), std::string::npos);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    ASSERT_NCCL(ncclCommQueryProperties(each, &properties));
    EXPECT_FALSE(properties.hostRmaSupport);
  }
  EXPECT_NCCL(ncclCommDestroy(child));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// What another communicator has queued on the device is no business of the one whose work ends.
TEST(OneSided, EndsBesideWorkOfOthersThatWaits) {
  OneSided ranks(2);
  Cluster others(2);
  const DeviceBuffer buffers[] = {DeviceBuffer(0, 4000), DeviceBuffer(1, 4000)};
  ranks.fill_source(0, 7);
  const auto start = [&](int rank) {
    return ncclAllReduce(buffers[rank].data(), buffers[rank].data(), 1000, ncclFloat, ncclSum,
                         others.comm(rank), others.stream(rank));
  };
  ASSERT_NCCL(start(0));  // waits for rank 1
  ASSERT_NCCL(ranks.wait(1, 0, 1));
  ASSERT_NCCL(ranks.put(0, 1, 100));
  EXPECT_EQ(ranks.read(1, 100), std::vector<int>(100, 7));
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommRevoke(ranks.comm(rank), 0));
  EXPECT_EQ(cudaStreamQuery(others.stream(0)), cudaErrorNotReady);
  ASSERT_NCCL(start(1));
  others.synchronize();
}

}  // namespace
}  // namespace niccolite::test
