// Wrong use of the C API: the documented code, a message that says what and what to do, and nothing
// broken afterwards.

#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string last_error() { return ncclGetLastError(nullptr); }

class BadInput : public testing::Test {
 protected:
  Cluster cluster_{2};
  DeviceBuffer buffer_{0, 64};

  ncclResult_t all_reduce(const void* input, size_t count, int type, int op, ncclComm_t comm) {
    return ncclAllReduce(input, buffer_.data(), count, static_cast<ncclDataType_t>(type),
                         static_cast<ncclRedOp_t>(op), comm, cluster_.stream(0));
  }
  void expect_still_works() {
    DeviceBuffer other(1, 64);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(buffer_.data(), buffer_.data(), 16, ncclFloat, ncclSum,
                              cluster_.comm(0), cluster_.stream(0)));
    EXPECT_NCCL(ncclAllReduce(other.data(), other.data(), 16, ncclFloat, ncclSum, cluster_.comm(1),
                              cluster_.stream(1)));
    EXPECT_NCCL(ncclGroupEnd());
    cluster_.synchronize();
  }
};

TEST_F(BadInput, NullAndForeignCommunicatorsAreRefused) {
  int value = 0;
  EXPECT_EQ(all_reduce(buffer_.data(), 1, ncclFloat, ncclSum, nullptr), ncclInvalidArgument);
  EXPECT_THAT(last_error(), HasSubstr("NULL"));
  const auto foreign = reinterpret_cast<ncclComm_t>(&value);
  EXPECT_EQ(all_reduce(buffer_.data(), 1, ncclFloat, ncclSum, foreign), ncclInvalidArgument);
  EXPECT_THAT(last_error(), HasSubstr("not a communicator"));
  EXPECT_EQ(ncclCommCount(foreign, &value), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(foreign), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(reinterpret_cast<ncclComm_t>(uintptr_t{8})), ncclInvalidArgument);
  expect_still_works();
}

TEST_F(BadInput, NullIsFineWhereNcclSaysSo) {
  EXPECT_EQ(ncclCommDestroy(nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommFinalize(nullptr), ncclSuccess);
}

TEST_F(BadInput, NullAnswersAreRefused) {
  EXPECT_EQ(ncclCommCount(cluster_.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCuDevice(cluster_.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommUserRank(cluster_.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetAsyncError(cluster_.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(nullptr, 1, nullptr), ncclInvalidArgument);
}

TEST_F(BadInput, BadEnumValuesAreNamed) {
  for (int type : {-1, static_cast<int>(ncclNumTypes), 1000}) {
    EXPECT_EQ(all_reduce(buffer_.data(), 1, type, ncclSum, cluster_.comm(0)), ncclInvalidArgument);
    EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclAllReduce"),
                                    HasSubstr("invalid type " + std::to_string(type))));
  }
  for (int op : {-1, static_cast<int>(ncclNumOps), 0x7fffffff}) {
    EXPECT_EQ(all_reduce(buffer_.data(), 1, ncclFloat, op, cluster_.comm(0)), ncclInvalidArgument);
    EXPECT_THAT(last_error(), HasSubstr("invalid reduction operation " + std::to_string(op)));
  }
  expect_still_works();
}

TEST_F(BadInput, CountsThatOverflowAreRefused) {
  for (size_t count : {SIZE_MAX, SIZE_MAX / 4 + 1, size_t{1} << 62}) {
    EXPECT_EQ(all_reduce(buffer_.data(), count, ncclFloat, ncclSum, cluster_.comm(0)),
              ncclInvalidArgument);
    EXPECT_THAT(last_error(), HasSubstr("count " + std::to_string(count)));
  }
  expect_still_works();
}

TEST_F(BadInput, NullBuffersAreNamedWithCallArgumentAndRank) {
  ncclComm_t comm = cluster_.comm(1);
  cudaStream_t stream = cluster_.stream(1);
  DeviceBuffer own(1, 64);
  EXPECT_EQ(ncclAllReduce(nullptr, own.data(), 4, ncclFloat, ncclSum, comm, stream),
            ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclAllReduce"), HasSubstr("sendbuff"),
                                  HasSubstr("NULL"), HasSubstr("rank 1")));
  EXPECT_EQ(ncclAllGather(own.data(), nullptr, 4, ncclFloat, comm, stream), ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclAllGather"), HasSubstr("recvbuff")));
  EXPECT_EQ(ncclSend(nullptr, 4, ncclFloat, 0, comm, stream), ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclSend"), HasSubstr("sendbuff")));
  EXPECT_EQ(ncclRecv(nullptr, 4, ncclFloat, 0, comm, stream), ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclRecv"), HasSubstr("recvbuff")));
  expect_still_works();
}

// What a rank does not use may be null.
TEST_F(BadInput, BuffersThatARankDoesNotUseMayBeNull) {
  DeviceBuffer other(1, 64);
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclReduce(buffer_.data(), buffer_.data(), 16, ncclFloat, ncclSum, 0,
                         cluster_.comm(0), cluster_.stream(0)));
  EXPECT_NCCL(ncclReduce(other.data(), nullptr, 16, ncclFloat, ncclSum, 0, cluster_.comm(1),
                         cluster_.stream(1)));
  EXPECT_NCCL(ncclBroadcast(buffer_.data(), buffer_.data(), 16, ncclFloat, 0, cluster_.comm(0),
                            cluster_.stream(0)));
  EXPECT_NCCL(
      ncclBroadcast(nullptr, other.data(), 16, ncclFloat, 0, cluster_.comm(1), cluster_.stream(1)));
  EXPECT_NCCL(ncclGroupEnd());
  cluster_.synchronize();
}

TEST_F(BadInput, MemoryThatIsNoneOfAGpuIsRefusedAtTheCall) {
  std::vector<float> pageable(16);
  void* freed = nullptr;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaMalloc(&freed, 64));
  ASSERT_CUDA(cudaFree(freed));
  for (void* pointer :
       {reinterpret_cast<void*>(uintptr_t{0xdead0}), static_cast<void*>(pageable.data()), freed}) {
    EXPECT_EQ(all_reduce(pointer, 16, ncclFloat, ncclSum, cluster_.comm(0)), ncclInvalidArgument);
    EXPECT_THAT(last_error(), AllOf(HasSubstr("ncclAllReduce"), HasSubstr("sendbuff 0x"),
                                    HasSubstr("not a valid pointer"), HasSubstr("rank 0")));
  }
  expect_still_works();
}

TEST_F(BadInput, CountsBeyondAnAllocationAreRefused) {
  cudaStream_t stream = cluster_.stream(0);
  ncclComm_t comm = cluster_.comm(0);
  void* buffer = nullptr;
  void* neighbour = nullptr;  // what lies behind is no part of the buffer
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaMalloc(&buffer, 64));
  ASSERT_CUDA(cudaMalloc(&neighbour, 64));
  EXPECT_EQ(all_reduce(buffer, 17, ncclFloat, ncclSum, comm), ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("sendbuff"), HasSubstr("68 bytes"),
                                  HasSubstr("ends after 64"), HasSubstr("rank 0")));
  EXPECT_EQ(ncclAllGather(buffer, buffer, 16, ncclFloat, comm, stream), ncclInvalidArgument);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("recvbuff"), HasSubstr("128 bytes")));
  EXPECT_EQ(ncclReduceScatter(buffer, buffer, 16, ncclFloat, ncclSum, comm, stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclAlltoAll(buffer, buffer, 16, ncclFloat, comm, stream), ncclInvalidArgument);
  EXPECT_EQ(ncclGather(buffer, buffer, 16, ncclFloat, 0, comm, stream), ncclInvalidArgument);
  EXPECT_EQ(ncclScatter(buffer, buffer, 16, ncclFloat, 0, comm, stream), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(static_cast<float*>(buffer) + 1, 16, ncclFloat, 1, comm, stream),
            ncclInvalidArgument);
  ASSERT_CUDA(cudaFree(buffer));
  ASSERT_CUDA(cudaFree(neighbour));
  expect_still_works();
}

TEST_F(BadInput, HostMemoryThatGpusReachIsFine) {
  void* pinned = nullptr;
  void* managed = nullptr;
  std::vector<float> registered(32);
  DeviceBuffer other(1, 64);
  ASSERT_CUDA(cudaHostAlloc(&pinned, 64, 0));
  ASSERT_CUDA(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal));
  // In two parts that lie side by side.
  ASSERT_CUDA(cudaHostRegister(registered.data(), 64, 0));
  ASSERT_CUDA(cudaHostRegister(registered.data() + 16, 64, 0));
  for (void* input : {pinned, managed, static_cast<void*>(registered.data() + 8)}) {
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(input, buffer_.data(), 16, ncclFloat, ncclSum, cluster_.comm(0),
                              cluster_.stream(0)));
    EXPECT_NCCL(ncclAllReduce(other.data(), other.data(), 16, ncclFloat, ncclSum, cluster_.comm(1),
                              cluster_.stream(1)));
    ASSERT_NCCL(ncclGroupEnd());
    cluster_.synchronize();
  }
  ASSERT_CUDA(cudaHostUnregister(registered.data()));
  ASSERT_CUDA(cudaHostUnregister(registered.data() + 16));
  ASSERT_CUDA(cudaFreeHost(pinned));
  ASSERT_CUDA(cudaFree(managed));
}

TEST_F(BadInput, UnknownStreamsAreACudaError) {
  int not_a_stream = 0;
  EXPECT_EQ(ncclAllReduce(buffer_.data(), buffer_.data(), 1, ncclFloat, ncclSum, cluster_.comm(0),
                          reinterpret_cast<cudaStream_t>(&not_a_stream)),
            ncclUnhandledCudaError);
  EXPECT_THAT(last_error(), HasSubstr("stream"));
}

TEST_F(BadInput, RanksOutOfRangeAreRefused) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  for (const auto& [nranks, rank] :
       {std::pair(0, 0), std::pair(-1, 0), std::pair(2, 2), std::pair(2, -1)}) {
    auto comm = reinterpret_cast<ncclComm_t>(uintptr_t{1});
    EXPECT_EQ(ncclCommInitRank(&comm, nranks, id, rank), ncclInvalidArgument);
    EXPECT_EQ(comm, nullptr);
    EXPECT_THAT(last_error(), HasSubstr("invalid rank requested : rank " + std::to_string(rank)));
  }
  EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
}

TEST_F(BadInput, AnIdThatNobodyMadeIsRefused) {
  ncclUniqueId id;
  std::memset(&id, 0x5a, sizeof id);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
}

TEST_F(BadInput, DevicesThatAreMissingOrListedTwiceAreNamed) {
  ncclComm_t comms[2];
  const int missing[] = {0, 99};
  EXPECT_EQ(ncclCommInitAll(comms, 2, missing), ncclInvalidArgument);
  EXPECT_THAT(last_error(), HasSubstr("99"));
  const int twice[] = {1, 1};
  EXPECT_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
  EXPECT_THAT(last_error(), HasSubstr("listed twice"));
  EXPECT_EQ(ncclCommInitAll(comms, -1, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(comms, 0, nullptr), ncclSuccess);
}

TEST_F(BadInput, TwoRanksOnOneDeviceAreRefusedOnBoth) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comms[2];
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) ASSERT_NCCL(ncclCommInitRank(&comms[rank], 2, id, rank));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_THAT(last_error(), AllOf(HasSubstr("Duplicate GPU detected"),
                                  HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1")));
  EXPECT_EQ(comms[0], nullptr);
  EXPECT_EQ(comms[1], nullptr);
}

TEST_F(BadInput, GroupEndWithoutStartIsRefused) {
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_THAT(last_error(), HasSubstr("not in a group"));
}

TEST_F(BadInput, AnErrorInsideAGroupFailsTheGroupAndLaunchesNothing) {
  buffer_.poison();
  const std::vector<unsigned char> before = buffer_.read();
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(buffer_.data(), buffer_.data(), 16, ncclFloat, ncclSum,
                            cluster_.comm(0), cluster_.stream(0)));
  EXPECT_EQ(all_reduce(buffer_.data(), 1, 77, ncclSum, cluster_.comm(1)), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  cluster_.synchronize();
  EXPECT_EQ(buffer_.read(), before);
  expect_still_works();
}

TEST_F(BadInput, BlockingAndNonblockingCommunicatorsDoNotShareAGroup) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(buffer_.data(), buffer_.data(), 16, ncclFloat, ncclSum,
                            cluster_.comm(0), cluster_.stream(0)));
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
  EXPECT_THAT(last_error(), HasSubstr("blocking"));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  expect_still_works();
}

TEST_F(BadInput, AfterDestroyTheHandleMeansNothing) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  ASSERT_NCCL(ncclCommDestroy(comm));
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
  int count = 0;
  EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
}

TEST_F(BadInput, AfterFinalizeOnlyQueriesAndDestroyAreAllowed) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  ASSERT_NCCL(ncclCommFinalize(comm));
  EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
  EXPECT_EQ(all_reduce(buffer_.data(), 1, ncclFloat, ncclSum, comm), ncclInvalidArgument);
  ncclResult_t state = ncclInternalError;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  EXPECT_EQ(state, ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace niccolite::test
