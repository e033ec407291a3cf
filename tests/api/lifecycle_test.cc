// Communicators from init to the end: queries, nonblocking mode, abort from another thread,
// repeated use without a leak.

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/api/trial.h"
#include "tests/api/values.h"
#include "tests/api/working.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

size_t entries_of(const char* directory) {
  size_t count = 0;
  DIR* dir = opendir(directory);
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

TEST(Lifecycle, ReportsRankCountAndDevice) {
  const int devices[] = {3, 1, 2};
  ncclComm_t comms[3];
  ASSERT_NCCL(ncclCommInitAll(comms, 3, devices));
  for (int rank = 0; rank < 3; ++rank) {
    int count = 0, device = -1, user_rank = -1;
    EXPECT_NCCL(ncclCommCount(comms[rank], &count));
    EXPECT_NCCL(ncclCommCuDevice(comms[rank], &device));
    EXPECT_NCCL(ncclCommUserRank(comms[rank], &user_rank));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(device, devices[rank]);
    EXPECT_EQ(user_rank, rank);
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(comms[rank], &state));
    EXPECT_EQ(state, ncclSuccess);
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Lifecycle, InitUsesTheCurrentDeviceAndLeavesItAlone) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaSetDevice(5 + rank));
    ASSERT_NCCL(ncclCommInitRank(&comms[rank], 2, id, rank));
  }
  ASSERT_NCCL(ncclGroupEnd());
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 6);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NCCL(ncclCommCuDevice(comms[rank], &device));
    EXPECT_EQ(device, 5 + rank);
    EXPECT_NCCL(ncclCommFinalize(comms[rank]));
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
  }
}

TEST(Lifecycle, NonblockingCommunicatorsWorkInTheBackground) {
  constexpr size_t kCount = 1000;
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2];
  std::vector<DeviceBuffer> buffers;
  // Outside of a group the first call must not wait for the second.
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), ncclInProgress);
    ASSERT_NE(comms[rank], nullptr);
  }
  for (ncclComm_t comm : comms) ASSERT_EQ(settled(comm), ncclSuccess);

  for (int rank = 0; rank < 2; ++rank) {
    buffers.emplace_back(rank, kCount * 4);
    buffers.back().write(input(ncclFloat, ncclSum, rank, kCount, 2));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < 2; ++rank)
    ASSERT_NCCL(ncclAllReduce(buffers[rank].data(), buffers[rank].data(), kCount, ncclFloat,
                              ncclSum, comms[rank], nullptr));
  const ncclResult_t end = ncclGroupEnd();
  ASSERT_TRUE(end == ncclInProgress || end == ncclSuccess);
  for (ncclComm_t comm : comms) ASSERT_EQ(settled(comm), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(buffers[static_cast<size_t>(rank)].read(), expected(ncclFloat, ncclSum, kCount, 2));
  }
  for (ncclComm_t comm : comms) {
    const ncclResult_t result = ncclCommFinalize(comm);
    ASSERT_TRUE(result == ncclInProgress || result == ncclSuccess);
  }
  for (ncclComm_t comm : comms) {
    ASSERT_EQ(settled(comm), ncclSuccess);
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

TEST(Lifecycle, AbortEndsAnInitThatWaitsForOthers) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  int count = 0;
  EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidArgument) << "still in progress";
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument) << "still in progress";
  const auto start = Clock::now();
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_LT(Clock::now() - start, seconds(30));
}

TEST(Lifecycle, AbortFromAnotherThreadEndsAKernelThatWaitsForItsPeer) {
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  DeviceBuffer buffer(0, 4096);
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaStreamCreate(&stream));
  // Only rank 0 calls: its kernel can never end by itself.
  ASSERT_NCCL(
      ncclAllReduce(buffer.data(), buffer.data(), 1024, ncclFloat, ncclSum, comms[0], stream));
  std::thread watchdog([&] { EXPECT_NCCL(ncclCommAbort(comms[0])); });
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  watchdog.join();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(Lifecycle, AbortFromAnotherThreadEndsADestroyThatWaitsForAPeer) {
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  DeviceBuffer buffer(0, 4096);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_NCCL(
      ncclAllReduce(buffer.data(), buffer.data(), 1024, ncclFloat, ncclSum, comms[0], nullptr));
  std::thread destroyer([&] {
    EXPECT_EQ(ncclCommDestroy(comms[0]), ncclInvalidUsage);  // it was aborted
  });
  int count = 0;
  const auto limit = Clock::now() + seconds(60);
  while (ncclCommCount(comms[0], &count) == ncclSuccess && Clock::now() < limit)
    std::this_thread::yield();
  EXPECT_EQ(ncclCommCount(comms[0], &count), ncclInvalidArgument) << "it is being destroyed";
  EXPECT_EQ(ncclCommDestroy(comms[0]), ncclInvalidArgument) << "it is being destroyed";
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  destroyer.join();
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(ncclCommAbort(comms[0]), ncclInvalidArgument) << "it is gone";
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

TEST(Lifecycle, DestroyInAGroupComesAfterAllElse) {
  constexpr int kRanks = 3;
  ncclComm_t comms[kRanks];
  ASSERT_NCCL(ncclCommInitAll(comms, kRanks, nullptr));
  Trial trial({Kind::AllReduce, ncclFloat, ncclSum, 1000}, kRanks);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
    ASSERT_NCCL(trial.call(rank, comms[rank], nullptr));
  }
  EXPECT_NCCL(ncclCommDestroy(nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_TRUE(trial.is_right()) << "what is destroyed has done its work";
  for (ncclComm_t comm : comms)
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument) << "it is gone";
}

TEST(Lifecycle, DestroyInAGroupThatFailsEndsNothing) {
  Cluster cluster(1);
  DeviceBuffer buffer(0, 4096);
  const auto reduce = [&](ncclDataType_t type) {
    return ncclAllReduce(buffer.data(), buffer.data(), 1024, type, ncclSum, cluster.comm(0),
                         cluster.stream(0));
  };
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommDestroy(cluster.comm(0)));
  EXPECT_EQ(reduce(ncclNumTypes), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NCCL(reduce(ncclFloat));
  cluster.synchronize();
}

TEST(Lifecycle, DestroyInAGroupOfNonblockingCommunicatorsIsWaitedFor) {
  const ncclComm_t comm = make_nonblocking();
  Trial trial({Kind::AllReduce, ncclFloat, ncclSum, 1000}, 1);
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(trial.call(0, comm, nullptr));
  EXPECT_NCCL(ncclCommDestroy(comm));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_TRUE(trial.is_right());
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument) << "it is gone";
}

TEST(Lifecycle, AbortInAGroupEndsAtOnceAndTheGroupSaysSo) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  DeviceBuffer buffer(0, 4096);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), 1024, ncclFloat, ncclSum, comm, nullptr));
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_NCCL(ncclGroupEnd());
}

TEST(Lifecycle, OldConfigurationStructsAreUnderstood) {
  ncclUniqueId id;
  for (const auto& [size, version] :
       {std::pair<size_t, unsigned>{24, 21400}, {40, 21703}, {48, 21805}, {80, 22809}}) {
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = size;
    config.version = version;
    config.blocking = 1;
    // Beyond its end lies whatever the caller's stack holds.
    std::memset(reinterpret_cast<char*>(&config) + size, 0x77, sizeof config - size);
    ncclComm_t comm = nullptr;
    ASSERT_CUDA(cudaSetDevice(0));
    EXPECT_NCCL(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
  ncclConfig_t config;
  std::memset(&config, 0, sizeof config);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
}

TEST(Lifecycle, ConfigurationFieldsOutOfRangeAreNamed) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  struct {
    int ncclConfig_t::*field;
    int value;
    const char* name;
  } const cases[] = {{&ncclConfig_t::blocking, 2, "blocking"},
                     {&ncclConfig_t::maxCTAs, 0, "maxCTAs"},
                     {&ncclConfig_t::CTAPolicy, 4, "CTAPolicy"},
                     {&ncclConfig_t::nChannelsPerNetPeer, 65, "nChannelsPerNetPeer"}};
  for (const auto& c : cases) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.*c.field = c.value;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(c.name), std::string::npos);
  }
}

// It has the communicators' memory and sockets, which are its parent's.
TEST(Lifecycle, AForkedChildIsRefusedAndHarmsNothing) {
  Cluster cluster(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ncclComm_t made = nullptr;
    ncclUniqueId id;
    void* memory = nullptr;
    const ncclComm_t comm = cluster.comm(0);
    const bool is_refused =
        ncclAllReduce(nullptr, nullptr, 1, ncclInt, ncclSum, comm, nullptr) == ncclInvalidUsage &&
        ncclCommSplit(comm, 0, 0, &made, nullptr) == ncclInvalidUsage &&
        ncclCommFinalize(comm) == ncclInvalidUsage && ncclCommRevoke(comm, 0) == ncclInvalidUsage &&
        ncclMemAlloc(&memory, 1) == ncclInvalidUsage && ncclGetUniqueId(&id) == ncclInvalidUsage;
    const bool is_told =
        std::string(ncclGetLastError(nullptr)).find("was forked from") != std::string::npos;
    const bool ends_nothing =
        ncclCommAbort(comm) == ncclSuccess && ncclCommDestroy(cluster.comm(1)) == ncclSuccess;
    _exit(is_refused && is_told && ends_nothing ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (int rank = 0; rank < 2; ++rank) {
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(cluster.comm(rank), &state));
    EXPECT_EQ(state, ncclSuccess);
  }
}

TEST(Lifecycle, RepeatedInitAndDestroyLeavesNothingBehind) {
  const auto cycle = [] {
    Cluster cluster(3);
    std::vector<DeviceBuffer> buffers;
    for (int rank = 0; rank < 3; ++rank) buffers.emplace_back(rank, 40000);
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) {
      unsigned char* data = buffers[static_cast<size_t>(rank)].data();
      EXPECT_NCCL(ncclAllReduce(data, data, 10000, ncclFloat, ncclSum, cluster.comm(rank),
                                cluster.stream(rank)));
    }
    EXPECT_NCCL(ncclGroupEnd());
    cluster.synchronize();
  };
  cycle();  // what is made once per process
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_before, &total));
  const size_t descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  constexpr int kCycles = 10;
  for (int i = 0; i < kCycles; ++i) cycle();
  ASSERT_CUDA(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(free_after, free_before);
  // The root thread of the last id may still be saying goodbye, over connections of its own.
  const auto limit = Clock::now() + seconds(10);
  while (entries_of("/proc/self/fd") > descriptors && Clock::now() < limit)
    std::this_thread::yield();
  // Fewer, where those of the test before were still counted.
  EXPECT_LE(entries_of("/proc/self/fd"), descriptors);
  // Virtual GPUs may have started another worker, when all that they had were busy.
  EXPECT_LT(entries_of("/proc/self/task"), threads + kCycles);
}

}  // namespace
}  // namespace niccolite::test
