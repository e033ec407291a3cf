// The host's side of the device API: teams are arithmetic, requirements are sizes, and
// communicators say what kernels may do with them.
#include <cstdlib>

#include "tests/api/device_communicators.h"

// Exported by NCCL, and declared by no header.
extern "C" ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int log_size, void* handle,
                                                       ncclDevResourceRequirements_t* need);
extern "C" ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t team, int, int, void* handle,
                                                         ncclDevResourceRequirements_t* need);

namespace niccolite::test {
namespace {

TEST(Teams, OfOneMachineAreTheCommunicatorAndOneRank) {
  Cluster cluster(3);
  for (int rank = 0; rank < 3; ++rank) {
    const ncclComm_t comm = cluster.comm(rank);
    EXPECT_TRUE(ncclTeamWorld(comm) == (ncclTeam_t{3, rank, 1}));
    EXPECT_TRUE(ncclTeamLsa(comm) == (ncclTeam_t{3, rank, 1}));
    EXPECT_TRUE(ncclTeamRail(comm) == (ncclTeam_t{1, 0, 3}));
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(ncclTeamRankToWorld(comm, ncclTeamWorld(comm), peer), peer);
      EXPECT_EQ(ncclTeamRankToLsa(comm, ncclTeamLsa(comm), peer), peer);
    }
  }
}

TEST(Teams, OfNoCommunicatorAreEmpty) {
  int none = 0;
  for (const ncclComm_t comm : {ncclComm_t{}, reinterpret_cast<ncclComm_t>(&none)}) {
    EXPECT_TRUE(ncclTeamWorld(comm) == (ncclTeam_t{0, 0, 0}));
    EXPECT_TRUE(ncclTeamLsa(comm) == (ncclTeam_t{0, 0, 0}));
    EXPECT_TRUE(ncclTeamRail(comm) == (ncclTeam_t{0, 0, 0}));
    EXPECT_EQ(ncclTeamRankToWorld(comm, {3, 0, 1}, 1), -1);
    EXPECT_EQ(ncclTeamRankToLsa(comm, {3, 0, 1}, 1), -1);
  }
}

// 12 ranks on three machines of four: every rank's teams against counting.
TEST(Teams, FactorsAndDifferencesAreWhatCountingFinds) {
  for (int rank = 0; rank < 12; ++rank) {
    const ncclTeam_t world = {12, rank, 1};
    const ncclTeam_t inner = ncclTeamInnerFactor(world, 4);
    const ncclTeam_t outer = ncclTeamOuterFactor(world, 4);
    EXPECT_TRUE(inner == (ncclTeam_t{4, rank % 4, 1}));
    EXPECT_TRUE(outer == (ncclTeam_t{3, rank / 4, 4}));
    for (const ncclTeam_t& subset : {inner, outer}) {
      int others = 0;
      for (int peer = 0; peer < 12; ++peer) {
        const bool is_member = ncclTeamRankIsMember(subset, world, peer);
        const bool counted = subset.stride == 1 ? peer / 4 == rank / 4 : peer % 4 == rank % 4;
        EXPECT_EQ(is_member, counted) << "rank " << rank << " peer " << peer;
        if (!is_member) {
          EXPECT_EQ(ncclTeamRankInDifference(world, subset, others), peer) << "rank " << rank;
          ++others;
        } else {
          const int member = subset.stride == 1 ? peer % 4 : peer / 4;
          EXPECT_EQ(ncclTeamRankToTeam(subset, world, peer), member);
          EXPECT_EQ(ncclTeamRankToTeam(world, subset, member), peer);
        }
      }
    }
  }
}

TEST(Properties, SayWhatTheCommunicatorCanDo) {
  Cluster cluster(2);
  for (int rank = 0; rank < 2; ++rank) {
    ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
    ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(rank), &props));
    EXPECT_EQ(props.rank, rank);
    EXPECT_EQ(props.nRanks, 2);
    EXPECT_EQ(props.cudaDev, rank);
    EXPECT_EQ(props.nLsaTeams, 1);
    EXPECT_TRUE(props.deviceApiSupport);
    EXPECT_TRUE(props.multimemSupport);
    EXPECT_EQ(props.ginType, NCCL_GIN_TYPE_PROXY);
    EXPECT_EQ(props.railedGinType, NCCL_GIN_TYPE_PROXY);
  }
}

/// A caller's properties of 2.31 and 2.32.
struct NewerProperties {
  ncclCommProperties_t head = NCCL_COMM_PROPERTIES_INITIALIZER;
  uint64_t hash = 0;
  int min_stride = 0, connection = 0;
  bool is_supported[64] = {};
  size_t runtime_size = 0;
};

void expect_networking(const Cluster& cluster, ncclGinType_t type) {
  NewerProperties props;
  props.head.size = sizeof props;
  props.head.version = 23203;
  ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(0), &props.head));
  EXPECT_EQ(props.head.ginType, type);
  EXPECT_EQ(props.head.railedGinType, type);
  EXPECT_EQ(props.connection,
            type == NCCL_GIN_TYPE_NONE ? NCCL_GIN_CONNECTION_NONE : NCCL_GIN_CONNECTION_FULL);
  for (int each = 0; each < 64; ++each)
    EXPECT_EQ(props.is_supported[each], each == type && each != NCCL_GIN_TYPE_NONE) << each;
}

TEST(Properties, SayThatKernelsHaveNetworkingByProxy) {
  Cluster cluster(1);
  expect_networking(cluster, NCCL_GIN_TYPE_PROXY);
  // Kernels of 2.29 have queues of another format.
  ncclCommProperties_t older = NCCL_COMM_PROPERTIES_INITIALIZER;
  older.version = 22907;
  EXPECT_NCCL(ncclCommQueryProperties(cluster.comm(0), &older));
  EXPECT_EQ(older.ginType, NCCL_GIN_TYPE_NONE);
}

// Variables are read once a process: api_test_without_gin and api_test_gin_type set one each.
TEST(WithoutNetworking, PropertiesSaySoAndDeviceCommunicatorsAreRefused) {
  const char* const type = std::getenv("NCCL_GIN_TYPE");
  const char* const enable = std::getenv("NCCL_GIN_ENABLE");
  if (type == nullptr && enable == nullptr) GTEST_SKIP() << "runs with one of NCCL_GIN_...";
  Cluster cluster(1);
  expect_networking(cluster, NCCL_GIN_TYPE_NONE);
  ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  reqs.ginForceEnable = true;
  ncclDevComm_t device;
  EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), &reqs, &device), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr))
                .find(type != nullptr ? "NCCL_GIN_TYPE" : "NCCL_GIN_ENABLE=0"),
            std::string::npos)
      << ncclGetLastError(nullptr);
}

struct PropertiesCaller {
  unsigned version;
  size_t size;     // of its struct
  size_t written;  // bytes that may be written
};

TEST(Properties, WriteNoMoreThanTheCallersHeaderHas) {
  Cluster cluster(1);
  for (const PropertiesCaller& caller :
       {PropertiesCaller{22902, 40, 40}, PropertiesCaller{22907, 56, 56},
        PropertiesCaller{23007, 56, 56}, PropertiesCaller{23203, 152, 144}}) {
    SCOPED_TRACE(caller.version);
    alignas(8) unsigned char bytes[160];
    std::memset(bytes, 0x5a, sizeof bytes);
    ncclCommProperties_t head = NCCL_COMM_PROPERTIES_INITIALIZER;
    head.size = caller.size;
    head.version = caller.version;
    std::memcpy(bytes, &head, 16);
    ASSERT_NCCL(
        ncclCommQueryProperties(cluster.comm(0), reinterpret_cast<ncclCommProperties_t*>(bytes)));
    for (size_t i = caller.written; i < sizeof bytes; ++i) ASSERT_EQ(bytes[i], 0x5a) << i;
    std::memcpy(&head, bytes, 40);
    EXPECT_EQ(head.size, caller.size);
    EXPECT_EQ(head.version, caller.version);
    EXPECT_EQ(head.nRanks, 1);
  }
}

TEST(Properties, OfOneRankHaveNoMulticast) {
  Cluster cluster(1);
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(0), &props));
  EXPECT_FALSE(props.multimemSupport);
}

TEST(Properties, HaveOneHashOnAllRanksOfACommunicator) {
  Cluster cluster(2), other(1);
  const auto hash_of = [](ncclComm_t comm) {
    struct {
      ncclCommProperties_t head = NCCL_COMM_PROPERTIES_INITIALIZER;
      uint64_t hash = 0;
    } props;
    props.head.size = sizeof props;
    props.head.version = 23203;
    EXPECT_EQ(ncclCommQueryProperties(comm, &props.head), ncclSuccess);
    return props.hash;
  };
  EXPECT_NE(hash_of(cluster.comm(0)), 0u);
  EXPECT_EQ(hash_of(cluster.comm(0)), hash_of(cluster.comm(1)));
  EXPECT_NE(hash_of(cluster.comm(0)), hash_of(other.comm(0)));
}

TEST(Properties, RefuseWhatWasNotInitialized) {
  Cluster cluster(1);
  EXPECT_EQ(ncclCommQueryProperties(cluster.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommQueryProperties(nullptr, nullptr), ncclInvalidArgument);
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  props.magic = 7;
  EXPECT_EQ(ncclCommQueryProperties(cluster.comm(0), &props), ncclInvalidUsage);
  for (const unsigned version : {22809u, 22904u, 23300u}) {
    props = NCCL_COMM_PROPERTIES_INITIALIZER;
    props.version = version;
    EXPECT_EQ(ncclCommQueryProperties(cluster.comm(0), &props), ncclInvalidUsage) << version;
  }
}

TEST(Requirements, OfBoxesOfNetworkingAreRefusedWithTheReason) {
  ncclDevResourceRequirements_t need = {};
  unsigned char handle[256] = {};
  EXPECT_EQ(ncclGinOutboxCreateRequirement(1, 4, handle, &need), ncclInvalidUsage);
  EXPECT_EQ(ncclGinInboxA2ACreateRequirement({1, 0, 1}, 1, 4, handle, &need), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("no boxes of networking"),
            std::string::npos);
}

TEST(Requirements, HaveTheSizesThatKernelsExpect) {
  Cluster cluster(1);
  const ncclTeam_t team = {4, 1, 1};
  ncclDevResourceRequirements_t need;
  ncclLsaBarrierHandle_t barrier;
  ASSERT_NCCL(ncclLsaBarrierCreateRequirement(team, 5, &barrier, &need));
  EXPECT_EQ(need.bufferSize, (3u * 5 + 5 * 4) * 4);
  EXPECT_EQ(need.bufferAlign, 4u);
  EXPECT_EQ(need.outBufferHandle, &barrier.bufHandle);
  EXPECT_EQ(barrier.nBarriers, 5);

  ncclGinBarrierHandle_t network;
  ASSERT_NCCL(ncclGinBarrierCreateRequirement(cluster.comm(0), team, 5, &network, &need));
  EXPECT_EQ(need.ginSignalCount, 20);
  EXPECT_EQ(need.bufferSize, 0u);
  EXPECT_EQ(need.outGinSignalStart, &network.signal0);

  EXPECT_EQ(ncclLLA2ACalcSlots(10, 12), 20);
  ncclLLA2AHandle_t exchange;
  ASSERT_NCCL(ncclLLA2ACreateRequirement(2, 20, &exchange, &need));
  EXPECT_EQ(need.bufferSize, 2u * 41 * 16);
  EXPECT_EQ(need.bufferAlign, 16u);
  EXPECT_EQ(exchange.nSlots, 20u);

  EXPECT_EQ(ncclLsaBarrierCreateRequirement(team, 5, nullptr, &need), ncclInvalidArgument);
  EXPECT_EQ(ncclLsaBarrierCreateRequirement(team, -1, &barrier, &need), ncclInvalidArgument);
  EXPECT_EQ(ncclGinBarrierCreateRequirement(nullptr, team, 1, &network, &need),
            ncclInvalidArgument);
  EXPECT_EQ(ncclLLA2ACreateRequirement(1, 1, &exchange, nullptr), ncclInvalidArgument);
}

}  // namespace
}  // namespace niccolite::test
