// ncclAllReduce through the C API on virtual GPUs: types, operations, sizes, places, alignment,
// streams.

#include <thread>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {
namespace {

enum class Placement { OutOfPlace, InPlace };

struct Case {
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  size_t count = 1;
  Placement place = Placement::OutOfPlace;
  size_t misalignment = 0;  // bytes; a multiple of the element
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "type " << c.type << " op " << c.op << " count " << c.count
             << (c.place == Placement::InPlace ? " in place" : " out of place") << " misaligned by "
             << c.misalignment;
}

// Runs one all-reduce over all ranks of the cluster and checks every byte of every rank.
void check_all_reduce(Cluster& cluster, const Case& c) {
  SCOPED_TRACE(testing::Message() << cluster.nranks() << " ranks, " << c);
  const int n = cluster.nranks();
  const size_t bytes = c.count * bytes_of(c.type);
  std::vector<DeviceBuffer> inputs, outputs;
  for (int rank = 0; rank < n; ++rank) {
    inputs.emplace_back(rank, bytes, c.misalignment);
    inputs.back().write(input(c.type, c.op, rank, c.count, n));
    if (c.place == Placement::OutOfPlace) outputs.emplace_back(rank, bytes, c.misalignment);
  }
  std::vector<DeviceBuffer>& results = c.place == Placement::OutOfPlace ? outputs : inputs;
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank)
    ASSERT_NCCL(ncclAllReduce(inputs[static_cast<size_t>(rank)].data(),
                              results[static_cast<size_t>(rank)].data(), c.count, c.type, c.op,
                              cluster.comm(rank), cluster.stream(rank)));
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  const Bytes want = expected(c.type, c.op, c.count, n);
  for (int rank = 0; rank < n; ++rank) {
    const Bytes got = results[static_cast<size_t>(rank)].read();
    const auto first = std::mismatch(got.begin(), got.end(), want.begin()).first;
    ASSERT_EQ(first, got.end()) << "rank " << rank << " differs from byte " << first - got.begin()
                                << " on";
    ASSERT_TRUE(results[static_cast<size_t>(rank)].guards_are_intact())
        << "rank " << rank << " wrote outside its output";
    if (c.place == Placement::OutOfPlace) {
      ASSERT_EQ(inputs[static_cast<size_t>(rank)].read(), input(c.type, c.op, rank, c.count, n))
          << "input changed";
    }
  }
}

constexpr ncclDataType_t kTypes[] = {ncclInt8,    ncclUint8,    ncclInt32,      ncclUint32,
                                     ncclInt64,   ncclUint64,   ncclFloat16,    ncclFloat32,
                                     ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
constexpr ncclRedOp_t kOperations[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

TEST(AllReduce, GivesTheSameBytesOnAllRanksForEveryTypeAndOperation) {
  for (int nranks : {2, 3}) {
    Cluster cluster(nranks);
    for (ncclDataType_t type : kTypes)
      for (ncclRedOp_t op : kOperations)
        for (size_t count : {size_t{1}, size_t{1003}})
          for (Placement place : {Placement::OutOfPlace, Placement::InPlace})
            ASSERT_NO_FATAL_FAILURE(check_all_reduce(cluster, {type, op, count, place}));
  }
}

TEST(AllReduce, HandlesCountsThatDivideByNothing) {
  for (int nranks : {1, 2, 4, 5, 8}) {
    Cluster cluster(nranks);
    for (size_t count : {1u, 2u, 7u, 63u, 64u, 65u, 2047u, 2048u, 2049u, 65537u, 300007u})
      for (Placement place : {Placement::OutOfPlace, Placement::InPlace})
        ASSERT_NO_FATAL_FAILURE(check_all_reduce(cluster, {ncclFloat, ncclSum, count, place}));
  }
}

TEST(AllReduce, HandlesPointersAlignedToTheElementOnly) {
  Cluster cluster(3);
  for (size_t misalignment : {1u, 2u, 3u, 8u, 15u})
    for (size_t count : {1u, 37u, 5000u, 200003u})
      ASSERT_NO_FATAL_FAILURE(check_all_reduce(
          cluster, {ncclUint8, ncclSum, count, Placement::OutOfPlace, misalignment}));
  ASSERT_NO_FATAL_FAILURE(
      check_all_reduce(cluster, {ncclHalf, ncclSum, 70001, Placement::InPlace, 2}));
}

TEST(AllReduce, OfNothingSucceedsAndTouchesNothing) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 16);
  EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), 0, ncclFloat, ncclSum, cluster.comm(0),
                            cluster.stream(0)));
  EXPECT_NCCL(
      ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, cluster.comm(0), cluster.stream(0)));
  EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(0)));
  EXPECT_TRUE(buffer.guards_are_intact());
}

TEST(AllReduce, WorksFromOneThreadPerRankWithoutAGroup) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 10'001;
  Cluster cluster(kRanks);
  std::vector<Bytes> results(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_CUDA(cudaSetDevice(rank));
      DeviceBuffer buffer(rank, kCount * 4);
      for (int repetition = 0; repetition < 20; ++repetition) {
        buffer.write(input(ncclFloat, ncclSum, rank, kCount, kRanks));
        EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclFloat, ncclSum,
                                  cluster.comm(rank), cluster.stream(rank)));
        EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(rank)));
      }
      results[static_cast<size_t>(rank)] = buffer.read();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& result : results)
    EXPECT_EQ(result, expected(ncclFloat, ncclSum, kCount, kRanks));
}

TEST(AllReduce, QueuedOnDifferentStreamsRunsInProgramOrder) {
  constexpr int kRanks = 2;
  constexpr size_t kCount = 4099;
  Cluster cluster(kRanks);
  std::vector<DeviceBuffer> buffers;
  std::vector<cudaStream_t> others(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    buffers.emplace_back(rank, kCount * 4);
    buffers.back().write(encode(ncclInt32, std::vector<double>(kCount, 1)));
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(
        cudaStreamCreateWithFlags(&others[static_cast<size_t>(rank)], cudaStreamNonBlocking));
  }
  constexpr int kRepetitions = 16;  // doubles each time
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) {
      unsigned char* data = buffers[static_cast<size_t>(rank)].data();
      const cudaStream_t stream =
          repetition % 2 == 0 ? cluster.stream(rank) : others[static_cast<size_t>(rank)];
      ASSERT_NCCL(
          ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, cluster.comm(rank), stream));
    }
    ASSERT_NCCL(ncclGroupEnd());
  }
  cluster.synchronize();
  for (cudaStream_t stream : others) ASSERT_CUDA(cudaStreamSynchronize(stream));
  for (DeviceBuffer& buffer : buffers)
    EXPECT_EQ(buffer.read(), encode(ncclInt32, std::vector<double>(kCount, 1 << kRepetitions)));
  for (cudaStream_t stream : others) ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST(AllReduce, CapturedInAGraphReplaysWithTheDataOfTheMoment) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 2111;
  Cluster cluster(kRanks);
  std::vector<DeviceBuffer> inputs, outputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    inputs.emplace_back(rank, kCount * 4);
    outputs.emplace_back(rank, kCount * 4);
  }
  std::vector<cudaGraphExec_t> graphs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(rank), cudaStreamCaptureModeThreadLocal));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<int>(rank);
    ASSERT_NCCL(ncclAllReduce(inputs[rank].data(), outputs[rank].data(), kCount, ncclInt32, ncclSum,
                              cluster.comm(r), cluster.stream(r)));
    ASSERT_NCCL(ncclAllReduce(outputs[rank].data(), outputs[rank].data(), kCount, ncclInt32,
                              ncclMax, cluster.comm(r), cluster.stream(r)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(static_cast<int>(rank)), &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&graphs[rank], graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  for (int replay = 1; replay <= 50; ++replay) {
    for (size_t rank = 0; rank < kRanks; ++rank)
      inputs[rank].write(encode(
          ncclInt32, std::vector<double>(kCount, replay * 10.0 + static_cast<double>(rank))));
    for (size_t rank = 0; rank < kRanks; ++rank)
      ASSERT_CUDA(cudaGraphLaunch(graphs[rank], cluster.stream(static_cast<int>(rank))));
    cluster.synchronize();
    for (size_t rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(outputs[rank].read(),
                encode(ncclInt32, std::vector<double>(kCount, 30.0 * replay + 3)));
  }
  for (cudaGraphExec_t graph : graphs) ASSERT_CUDA(cudaGraphExecDestroy(graph));
}

TEST(AllReduce, AveragesOfLargeHalvesDoNotOverflow) {
  constexpr int kRanks = 4;
  Cluster cluster(kRanks);
  std::vector<DeviceBuffer> buffers;
  for (int rank = 0; rank < kRanks; ++rank) {
    buffers.emplace_back(rank, 2);
    buffers.back().write(encode(ncclHalf, {60000}));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    unsigned char* data = buffers[static_cast<size_t>(rank)].data();
    ASSERT_NCCL(
        ncclAllReduce(data, data, 1, ncclHalf, ncclAvg, cluster.comm(rank), cluster.stream(rank)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (DeviceBuffer& buffer : buffers) EXPECT_EQ(buffer.read(), encode(ncclHalf, {60000}));
}

}  // namespace
}  // namespace niccolite::test
