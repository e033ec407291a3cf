// Collectives with settings of their own (ncclAllReduceConfig and its like), encryption that is
// asked for, and what there is of the compute fabric: what NCCL 2.31 and 2.32 have added.

#include <gmock/gmock.h>
#include <nccl_device.h>

#include <chrono>
#include <thread>

#include "tests/api/trial.h"
#include "tests/api/working.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

ncclCollConfig_t with_ctas(int least, int most) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.minCTAs = least;
  config.maxCTAs = most;
  return config;
}
ncclCollConfig_t selecting(const char* text, int force = 1) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.algSelection = text;
  config.forceAlgSelection = force;
  return config;
}

/// Of a rank by itself.
struct Lone {
  Lone() : cluster(1), buffer(0, 4096) {}
  ncclResult_t all_reduce(const ncclCollConfig_t& config) {
    return ncclAllReduceConfig(buffer.data(), buffer.data(), 4, ncclFloat, ncclSum, cluster.comm(0),
                               cluster.stream(0), &config);
  }
  Cluster cluster;
  DeviceBuffer buffer;
};

void run(Cluster& cluster, const std::vector<std::unique_ptr<Trial>>& trials,
         const ncclCollConfig_t* config) {
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    for (const auto& trial : trials)
      ASSERT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank), config));
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (const auto& trial : trials) ASSERT_TRUE(trial->is_right());
}

TEST(CallConfiguration, LeavesEveryCollectiveRight) {
  const ncclCollConfig_t none = NCCL_COLLCONFIG_INITIALIZER;
  const ncclCollConfig_t one_cta = with_ctas(1, 1), several = with_ctas(3, 1000);
  const ncclCollConfig_t free_ring = selecting("RING", /*force=*/0);
  ncclCollConfig_t saving = NCCL_COLLCONFIG_INITIALIZER;
  saving.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
  saving.userProfilerTag = 7;
  for (const int nranks : {1, 2, 5}) {
    Cluster cluster(nranks);
    for (const ncclCollConfig_t& config : {none, one_cta, several, free_ring, saving}) {
      std::vector<std::unique_ptr<Trial>> trials;
      for (const Kind kind : kCollectives)
        trials.push_back(std::make_unique<Trial>(
            Operation{.kind = kind, .count = 10'001, .root = nranks - 1, .salt = trials.size()},
            nranks));
      // All in one group, and each by itself, twice.
      ASSERT_NO_FATAL_FAILURE(run(cluster, trials, &config));
      for (int turn = 0; turn < 2; ++turn)
        for (const auto& trial : trials) {
          trial->reset();
          ASSERT_NCCL(ncclGroupStart());
          for (int rank = 0; rank < nranks; ++rank)
            ASSERT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank), &config));
          ASSERT_NCCL(ncclGroupEnd());
          cluster.synchronize();
          ASSERT_TRUE(trial->is_right());
        }
    }
  }
}

TEST(CallConfiguration, OfDifferentCallsInOneGroupIsEachCallsOwn) {
  Cluster cluster(3);
  const ncclCollConfig_t configs[] = {selecting("RING_LL"), with_ctas(1, 1), selecting("TREE")};
  std::vector<std::unique_ptr<Trial>> trials;
  for (size_t i = 0; i < 8; ++i)
    trials.push_back(std::make_unique<Trial>(Operation{.count = 1000 + i, .salt = i}, 3));
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto& trial : trials) trial->reset();
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank)
      for (size_t i = 0; i < trials.size(); ++i)
        ASSERT_NCCL(trials[i]->call(rank, cluster.comm(rank), cluster.stream(rank),
                                    i % 2 == 0 ? nullptr : &configs[i / 2 % 3]));
    ASSERT_NCCL(ncclGroupEnd());
    cluster.synchronize();
    for (const auto& trial : trials) ASSERT_TRUE(trial->is_right());
  }
}

TEST(CallConfiguration, IsRefusedByTheCallItself) {
  Lone lone;
  ncclCollConfig_t config{};
  EXPECT_EQ(lone.all_reduce(config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("NCCL_COLLCONFIG_INITIALIZER"));
  EXPECT_EQ(lone.all_reduce(selecting("RING", 2)), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("forceAlgSelection is 2"));
  config = NCCL_COLLCONFIG_INITIALIZER;
  config.CTAPolicy = 4;
  EXPECT_EQ(lone.all_reduce(config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("CTAPolicy is 4"));
  for (const char* const text : {"SYMK_ST", "no_such", "^", "RING+^RING"}) {
    EXPECT_EQ(lone.all_reduce(selecting(text)), ncclInvalidArgument) << text;
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("cannot be honored for AllReduce"));
    EXPECT_NCCL(lone.all_reduce(selecting(text, 0)));
  }
  EXPECT_NCCL(lone.all_reduce(selecting("")));
  EXPECT_NCCL(lone.all_reduce(with_ctas(-5, 1 << 20)));  // ignored
  // In a group, too, whose other calls come to nothing then.
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_EQ(lone.all_reduce(selecting("no_such")), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NCCL(lone.all_reduce(with_ctas(1, 2)));
  lone.cluster.synchronize();
}

// Of this header's fields those that the caller's header has are read, and no others.
TEST(CallConfiguration, OfAnOlderHeaderIsReadToItsEnd) {
  Lone lone;
  struct Older {  // 2.31
    unsigned char bytes[64];
    unsigned char garbage[8];
  } older;
  std::memset(&older, 0x5a, sizeof older);
  ncclCollConfig_t today = with_ctas(1, 2);
  today.size = sizeof older.bytes;
  today.version = 23102;
  std::memcpy(older.bytes, &today, sizeof older.bytes);
  EXPECT_NCCL(ncclAllReduceConfig(lone.buffer.data(), lone.buffer.data(), 4, ncclFloat, ncclSum,
                                  lone.cluster.comm(0), lone.cluster.stream(0),
                                  reinterpret_cast<const ncclCollConfig_t*>(&older)));
  lone.cluster.synchronize();
}

/// The event of a launch, and a stream of the rank's device that is free.
class LaunchEvent {
 public:
  explicit LaunchEvent(int device) {
    EXPECT_CUDA(cudaSetDevice(device));
    EXPECT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~LaunchEvent() { EXPECT_CUDA(cudaEventDestroy(event_)); }
  LaunchEvent(const LaunchEvent&) = delete;
  cudaEvent_t get() const { return event_; }
  ncclCollConfig_t config() const {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.launchCompletionEvent = event_;
    return config;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

TEST(LaunchCompletionEvent, ComesBeforeTheOperationHasEnded) {
  Cluster cluster(2);
  const Trial trial({.count = 100'000}, 2);
  LaunchEvent event(0);
  const ncclCollConfig_t config = event.config();
  ASSERT_NCCL(trial.call(0, cluster.comm(0), cluster.stream(0), &config));
  ASSERT_CUDA(cudaEventSynchronize(event.get()));  // though the other rank has not called yet
  EXPECT_EQ(cudaStreamQuery(cluster.stream(0)), cudaErrorNotReady);
  ASSERT_NCCL(trial.call(1, cluster.comm(1), cluster.stream(1)));
  cluster.synchronize();
  EXPECT_TRUE(trial.is_right());
}

TEST(LaunchCompletionEvent, ComesAfterWhatIsBeforeTheOperationOnItsStream) {
  Cluster cluster(2);
  const Trial first({.count = 1000}, 2), second({.count = 100'000, .salt = 1}, 2);
  LaunchEvent event(0);
  const ncclCollConfig_t config = event.config();
  ASSERT_NCCL(first.call(0, cluster.comm(0), cluster.stream(0)));
  ASSERT_NCCL(second.call(0, cluster.comm(0), cluster.stream(0), &config));
  EXPECT_EQ(cudaEventQuery(event.get()), cudaErrorNotReady);  // the first waits for the other rank
  ASSERT_NCCL(first.call(1, cluster.comm(1), cluster.stream(1)));
  ASSERT_CUDA(cudaEventSynchronize(event.get()));
  ASSERT_NCCL(second.call(1, cluster.comm(1), cluster.stream(1)));
  cluster.synchronize();
  EXPECT_TRUE(first.is_right());
  EXPECT_TRUE(second.is_right());
}

TEST(LaunchCompletionEvent, IsOneInAGroup) {
  Cluster cluster(1);
  const Trial one({.kind = Kind::AllGather, .count = 100}, 1), two({.count = 50, .salt = 1}, 1);
  LaunchEvent first(0), second(0);
  const ncclCollConfig_t configs[] = {first.config(), second.config()};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(one.call(0, cluster.comm(0), cluster.stream(0), &configs[0]));
  EXPECT_NCCL(two.call(0, cluster.comm(0), cluster.stream(0), &configs[1]));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr),
              HasSubstr("Only one launch-completion event may be provided in one NCCL group"));
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(one.call(0, cluster.comm(0), cluster.stream(0), &configs[0]));
  EXPECT_NCCL(two.call(0, cluster.comm(0), cluster.stream(0)));
  ASSERT_NCCL(ncclGroupEnd());
  ASSERT_CUDA(cudaEventSynchronize(first.get()));
  cluster.synchronize();
  EXPECT_TRUE(one.is_right());
  EXPECT_TRUE(two.is_right());
}

TEST(LaunchCompletionEvent, IsCaptured) {
  Cluster cluster(1);
  Trial trial({.kind = Kind::AllGather, .count = 100}, 1);
  LaunchEvent event(0);
  const ncclCollConfig_t config = event.config();
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(cluster.stream(0), cudaStreamCaptureModeThreadLocal));
  ASSERT_NCCL(trial.call(0, cluster.comm(0), cluster.stream(0), &config));
  ASSERT_CUDA(cudaStreamWaitEvent(other, event.get(), 0));  // joins the capture
  cudaEvent_t joined = nullptr;
  ASSERT_CUDA(cudaEventCreate(&joined));
  ASSERT_CUDA(cudaEventRecord(joined, other));
  ASSERT_CUDA(cudaStreamWaitEvent(cluster.stream(0), joined, 0));
  ASSERT_CUDA(cudaStreamEndCapture(cluster.stream(0), &graph));
  ASSERT_CUDA(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  for (int turn = 0; turn < 3; ++turn) {
    trial.reset();
    ASSERT_CUDA(cudaGraphLaunch(executable, cluster.stream(0)));
    cluster.synchronize();
    EXPECT_TRUE(trial.is_right());
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaEventDestroy(joined));
  EXPECT_CUDA(cudaStreamDestroy(other));
}

ncclEncryptionConfig_t encryption(ncclEncryptionMode_t mode, const char* key) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  config.mode = mode;
  config.psk = key;
  return config;
}

TEST(Encryption, OfConnectionsIsNotPromised) {
  const char* const key = "0123456789abcdef0123456789abcdef";
  const ncclEncryptionConfig_t wanted = encryption(NCCL_ENCRYPTION_MODE_PSK, key);
  ASSERT_NCCL(ncclSetEncryption(&wanted));
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("does not encrypt connections"));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitAll(&comm, 1, nullptr), ncclInvalidUsage);
  const ncclEncryptionConfig_t none = encryption(NCCL_ENCRYPTION_MODE_NONE, nullptr);
  ASSERT_NCCL(ncclSetEncryption(&none));
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ASSERT_NCCL(ncclSetEncryption(&wanted));
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidUsage);
  ASSERT_NCCL(ncclSetEncryption(nullptr));
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  ASSERT_NCCL(ncclCommDestroy(comm));
}

TEST(Encryption, SettingsAreChecked) {
  const ncclEncryptionConfig_t unset{};
  EXPECT_EQ(ncclSetEncryption(&unset), ncclInvalidArgument);
  for (const char* const key : {static_cast<const char*>(nullptr), "too short"}) {
    const ncclEncryptionConfig_t config = encryption(NCCL_ENCRYPTION_MODE_PSK, key);
    EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("at least 32 characters"));
  }
  ncclEncryptionConfig_t unknown =
      encryption(NCCL_ENCRYPTION_MODE_PSK, "0123456789abcdef0123456789abcdef");
  const int no_mode = 2;
  std::memcpy(&unknown.mode, &no_mode, sizeof no_mode);
  EXPECT_EQ(ncclSetEncryption(&unknown), ncclInvalidArgument);
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
}

TEST(ComputeFabric, HasNoEndpoints) {
  Cluster cluster(2);
  const auto expect_alone = [](const ncclTeam_t& team) {
    EXPECT_EQ(team.nRanks, 1);
    EXPECT_EQ(team.rank, 0);
  };
  expect_alone(ncclTeamCft(cluster.comm(1)));
  expect_alone(ncclTeamCft(cluster.comm(1), NCCL_CFT_TEAM_HIER_LSA));
  expect_alone(ncclTeamCftMultimem(cluster.comm(1)));
  EXPECT_EQ(ncclTeamCft(cluster.comm(1), static_cast<ncclCftTeamMode_t>(3)).nRanks, 0);
  EXPECT_EQ(ncclTeamCft(nullptr).nRanks, 0);
  ncclCftLeId id = 0;
  size_t offset = 0;
  EXPECT_EQ(ncclGetPeerDeviceLeInfo(nullptr, 0, 1, &id, &offset), ncclInvalidArgument);
  EXPECT_EQ(ncclGetCftDeviceLeInfo(nullptr, 0, 0, ncclTeamCft(cluster.comm(0)), &id, &offset),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGetMultimemDeviceLeInfo(nullptr, 0, &id, &offset), ncclInvalidArgument);
}

}  // namespace
}  // namespace niccolite::test
