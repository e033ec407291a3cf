// Wrong use of the C API: the documented code, a message that says what and what to do, and nothing
// broken afterwards.

#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "tests/api/cluster.h"
#include "tests/api/ranges.h"

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

// ---- buffers that overlap: an error where the user asks for it alone

bool checks_are_asked() { return std::getenv("NCCL_CHECK_POINTERS") != nullptr; }

/// Rank 1 of 3, and one allocation of its device for both buffers.
class Overlaps : public testing::Test {
 protected:
  static constexpr size_t kBlock = 64;
  static constexpr int kRanks = 3;

  void SetUp() override {
    if (!checks_are_asked()) GTEST_SKIP() << "runs with NCCL_CHECK_POINTERS=1, as api_test_checks";
  }

  struct Case {
    const char* function;
    size_t input_blocks, output_blocks;
    std::optional<ptrdiff_t> in_place;  // how far the output lies behind the input
    std::function<ncclResult_t(const void* input, void* output, int rank)> call;
  };
  std::vector<Case> cases() {
    const auto comm = [this](int rank) { return cluster_.comm(rank); };
    const auto stream = [this](int rank) { return cluster_.stream(rank); };
    constexpr auto kOwn = static_cast<ptrdiff_t>(kBlock);  // rank 1's, of several
    return {
        {"ncclAllReduce", 1, 1, 0,
         [=](const void* in, void* out, int rank) {
           return ncclAllReduce(in, out, kBlock, ncclInt8, ncclSum, comm(rank), stream(rank));
         }},
        {"ncclReduce", 1, 1, 0,
         [=](const void* in, void* out, int rank) {
           return ncclReduce(in, out, kBlock, ncclInt8, ncclSum, 1, comm(rank), stream(rank));
         }},
        {"ncclBroadcast", 1, 1, 0,
         [=](const void* in, void* out, int rank) {
           return ncclBroadcast(in, out, kBlock, ncclInt8, 1, comm(rank), stream(rank));
         }},
        {"ncclAllGather", 1, kRanks, -kOwn,
         [=](const void* in, void* out, int rank) {
           return ncclAllGather(in, out, kBlock, ncclInt8, comm(rank), stream(rank));
         }},
        {"ncclReduceScatter", kRanks, 1, kOwn,
         [=](const void* in, void* out, int rank) {
           return ncclReduceScatter(in, out, kBlock, ncclInt8, ncclSum, comm(rank), stream(rank));
         }},
        {"ncclGather", 1, kRanks, -kOwn,
         [=](const void* in, void* out, int rank) {
           return ncclGather(in, out, kBlock, ncclInt8, 1, comm(rank), stream(rank));
         }},
        {"ncclScatter", kRanks, 1, kOwn,
         [=](const void* in, void* out, int rank) {
           return ncclScatter(in, out, kBlock, ncclInt8, 1, comm(rank), stream(rank));
         }},
        {"ncclAlltoAll", kRanks, kRanks, std::nullopt,
         [=](const void* in, void* out, int rank) {
           return ncclAlltoAll(in, out, kBlock, ncclInt8, comm(rank), stream(rank));
         }},
    };
  }

  Cluster cluster_{kRanks};
  DeviceBuffer memory_{1, 16 * kBlock};
  // The other ranks take part where the call is right.
  DeviceBuffer of_0_{0, 16 * kBlock}, of_2_{2, 16 * kBlock};
};

TEST_F(Overlaps, AreRefusedInEveryPlaceButInPlace) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.function);
    unsigned char* const input = memory_.data() + 8 * kBlock;
    const auto begin = -static_cast<ptrdiff_t>(each.output_blocks * kBlock);
    const auto end = static_cast<ptrdiff_t>(each.input_blocks * kBlock);
    for (ptrdiff_t distance = begin; distance <= end; ++distance) {
      // Alone in a group that another error ends: nobody has to take part.
      EXPECT_NCCL(ncclGroupStart());
      const ncclResult_t called = each.call(input, input + distance, 1);
      const std::string error = called == ncclSuccess ? "" : last_error();
      if (called == ncclSuccess) {
        EXPECT_EQ(each.call(nullptr, nullptr, 1), ncclInvalidArgument);
      }
      EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
      const bool is_right = distance == begin || distance == end || distance == each.in_place;
      EXPECT_EQ(called == ncclSuccess, is_right) << distance << ": " << error;
      if (is_right) continue;
      EXPECT_THAT(
          error,
          AllOf(HasSubstr(each.function),
                HasSubstr("sendbuff " + range_of(input, each.input_blocks * kBlock)),
                HasSubstr("recvbuff " + range_of(input + distance, each.output_blocks * kBlock)),
                HasSubstr("of rank 1 overlap: use memory that does not"),
                HasSubstr(each.in_place ? "or the form in place, where" : "no form in place")));
    }
  }
}

TEST_F(Overlaps, InPlaceAreCarriedOut) {
  for (const Case& each : cases()) {
    if (!each.in_place) continue;
    SCOPED_TRACE(each.function);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        each.call(memory_.data() + 8 * kBlock, memory_.data() + 8 * kBlock + *each.in_place, 1));
    EXPECT_NCCL(each.call(of_0_.data(), of_0_.data() + 8 * kBlock, 0));
    EXPECT_NCCL(each.call(of_2_.data(), of_2_.data() + 8 * kBlock, 2));
    EXPECT_NCCL(ncclGroupEnd());
    cluster_.synchronize();
  }
}

// A rank may pass anything for a buffer that it does not use.
TEST_F(Overlaps, OfBuffersThatARankDoesNotUseAreNone) {
  unsigned char* const own = memory_.data();
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(
      ncclBroadcast(own + 1, own, kBlock, ncclInt8, 0, cluster_.comm(1), cluster_.stream(1)));
  EXPECT_NCCL(ncclGather(own, own + 1, kBlock, ncclInt8, 0, cluster_.comm(1), cluster_.stream(1)));
  EXPECT_NCCL(ncclScatter(own + 1, own, kBlock, ncclInt8, 0, cluster_.comm(1), cluster_.stream(1)));
  EXPECT_EQ(
      ncclAllReduce(nullptr, own, kBlock, ncclInt8, ncclSum, cluster_.comm(1), cluster_.stream(1)),
      ncclInvalidArgument);  // which ends the group
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
}

// As nccl-tests do it.
TEST_F(BadInput, AnAllToAllInPlaceIsCarriedOutUnlessChecksAreAsked) {
  DeviceBuffer other(1, 64);
  EXPECT_NCCL(ncclGroupStart());
  const ncclResult_t called = ncclAlltoAll(buffer_.data(), buffer_.data(), 32, ncclInt8,
                                           cluster_.comm(0), cluster_.stream(0));
  EXPECT_EQ(called, checks_are_asked() ? ncclInvalidArgument : ncclSuccess);
  EXPECT_EQ(
      ncclAlltoAll(other.data(), other.data(), 32, ncclInt8, cluster_.comm(1), cluster_.stream(1)),
      called);
  EXPECT_EQ(ncclGroupEnd(), called);
  cluster_.synchronize();
  expect_still_works();
}

}  // namespace
}  // namespace niccolite::test
