// The host's side of the device API: teams are arithmetic, requirements are sizes, device
// communicators are laid out as each caller's header reads them, and missing abilities are refused
// with the reason.
#include <nccl_device.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "tests/api/cluster.h"

// Exported by NCCL, and declared by no header.
extern "C" ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int log_size, void* handle,
                                                       ncclDevResourceRequirements_t* need);
extern "C" ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t team, int, int, void* handle,
                                                         ncclDevResourceRequirements_t* need);

namespace niccolite::test {
namespace {

bool operator==(const ncclTeam_t& a, const ncclTeam_t& b) {
  return a.nRanks == b.nRanks && a.rank == b.rank && a.stride == b.stride;
}

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

// Offsets of fields in a caller's header. Source: device-api reference, sections 2 and 4. -1: not
// there.
struct DeviceCaller {
  const char* header;
  unsigned version;  // 0: its structs do not say
  size_t requirements, barriers_at;
  size_t bytes;  // of its ncclDevComm
  int magic, rank, lsa_rank, table, resources, base, stride, lsa_barrier, abort_flag;
};
constexpr DeviceCaller kDeviceCallers[] = {
    {"2.28.9", 0, 56, 24, 200, -1, 0, 12, 24, 32, 48, 64, 120, -1},
    {"2.29.3", 22903, 72, 40, 200, -1, 0, 12, 24, 32, 48, 64, 120, -1},
    {"2.29.7", 22907, 88, 40, 224, -1, 0, 12, 24, 32, 48, 64, 120, 216},
    {"2.30.4", 23004, 96, 40, 240, 0, 8, 20, 32, 40, 56, 72, 128, 208},
    {"2.30.7", 23007, 96, 40, 240, 0, 8, 20, 32, 40, 56, 72, 128, 208},
    {"2.31.2", 23102, 120, 40, 248, 0, 8, 20, 32, 40, 48, 56, 80, 168},
    {"2.32.3", 23203, 120, 40, 248, 0, 8, 20, 32, 40, 48, 56, 80, 168},
};

template <typename T>
T at(const std::vector<unsigned char>& bytes, int offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Requirements as the caller's header lays them out, with lists.
std::vector<unsigned char> requirements_of(const DeviceCaller& caller, int barriers,
                                           ncclDevResourceRequirements_t* list) {
  std::vector<unsigned char> bytes(caller.requirements);
  int list_at = 0;
  if (caller.version != 0) {
    const uint64_t size = caller.requirements;
    const unsigned head[] = {NCCL_API_MAGIC, caller.version};
    std::memcpy(bytes.data(), &size, sizeof size);
    std::memcpy(bytes.data() + 8, head, sizeof head);
    list_at = 16;
  }
  std::memcpy(bytes.data() + list_at, &list, sizeof list);
  std::memcpy(bytes.data() + caller.barriers_at, &barriers, sizeof barriers);
  return bytes;
}

/// ncclDevCommCreate on all ranks, of the caller's structs; what lies behind them is 0x5a.
std::vector<std::vector<unsigned char>> create_devices(
    const Cluster& cluster, const DeviceCaller& caller, int barriers,
    std::vector<ncclDevResourceRequirements_t>* lists = nullptr) {
  std::vector<std::vector<unsigned char>> devices;
  std::vector<std::vector<unsigned char>> needs;
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    devices.emplace_back(caller.bytes + 64, 0x5a);
    needs.push_back(requirements_of(
        caller, barriers, lists != nullptr ? &(*lists)[static_cast<size_t>(rank)] : nullptr));
  }
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    EXPECT_NCCL(ncclDevCommCreate(
        cluster.comm(rank), reinterpret_cast<const ncclDevCommRequirements_t*>(needs[i].data()),
        reinterpret_cast<ncclDevComm_t*>(devices[i].data())));
    // The caller may reuse its structs.
    std::fill(needs[i].begin(), needs[i].end(), 0xff);
  }
  EXPECT_NCCL(ncclGroupEnd());
  return devices;
}

ncclResult_t destroy_device(const Cluster& cluster, int rank,
                            const std::vector<unsigned char>& device) {
  const std::vector<unsigned char> copy = device;
  return ncclDevCommDestroy(cluster.comm(rank),
                            reinterpret_cast<const ncclDevComm_t*>(copy.data()));
}

uint32_t reciprocal(uint32_t n) { return UINT32_MAX / n + ((n & (n - 1)) == 0 ? 1 : 0); }

TEST(DeviceCommunicators, AreLaidOutAsTheCallersHeaderReadsThem) {
  constexpr int kRanks = 3;
  constexpr int kBarriers = 5;
  Cluster cluster(kRanks);
  for (const DeviceCaller& caller : kDeviceCallers) {
    SCOPED_TRACE(caller.header);
    std::vector<uint32_t> handles(kRanks, 77);
    std::vector<ncclDevResourceRequirements_t> lists(kRanks);
    for (size_t i = 0; i < kRanks; ++i)
      lists[i] = {nullptr, 1000, 512, &handles[i], 0, 0, nullptr, nullptr};
    const auto devices = create_devices(cluster, caller, kBarriers, &lists);
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(rank);
      const std::vector<unsigned char>& device = devices[static_cast<size_t>(rank)];
      for (size_t i = caller.bytes; i < device.size(); ++i) ASSERT_EQ(device[i], 0x5a) << i;
      if (caller.magic >= 0) {
        EXPECT_EQ(at<uint32_t>(device, caller.magic), uint32_t{NCCL_API_MAGIC});
        EXPECT_EQ(at<uint32_t>(device, caller.magic + 4), caller.version);
      }
      EXPECT_EQ(at<int32_t>(device, caller.rank), rank);
      EXPECT_EQ(at<int32_t>(device, caller.rank + 4), kRanks);
      EXPECT_EQ(at<uint32_t>(device, caller.rank + 8), reciprocal(kRanks));
      EXPECT_EQ(at<int32_t>(device, caller.lsa_rank), rank);
      EXPECT_EQ(at<int32_t>(device, caller.lsa_rank + 4), kRanks);
      EXPECT_EQ(at<uint32_t>(device, caller.lsa_rank + 8), reciprocal(kRanks));
      EXPECT_NE(at<uint64_t>(device, caller.table), 0u);
      EXPECT_EQ(at<int32_t>(device, caller.lsa_barrier + 4), kBarriers);
      if (caller.abort_flag >= 0) {
        ASSERT_NE(at<const uint32_t*>(device, caller.abort_flag), nullptr);
        EXPECT_EQ(*at<const uint32_t*>(device, caller.abort_flag), 0u);
      }
      // The window's record, and its copy in the struct.
      const auto* const record = at<const unsigned char*>(device, caller.resources);
      ASSERT_NE(record, nullptr);
      char* base = nullptr;
      uint32_t stride = 0;
      std::memcpy(&base, record + 8, sizeof base);
      std::memcpy(&stride, record + 24, sizeof stride);
      EXPECT_EQ(at<char*>(device, caller.base), base);
      EXPECT_EQ(at<uint32_t>(device, caller.stride), stride);
      // Every rank reaches every other's buffer, which is zeros and begins behind the barriers.
      EXPECT_EQ(handles[static_cast<size_t>(rank)], handles[0]);
      EXPECT_EQ(handles[0] * 128 % 512, 0u);
      EXPECT_GE(handles[0] * 128,
                at<uint32_t>(device, caller.lsa_barrier) * 128 + (3 + kRanks) * kBarriers * 4);
      for (int peer = 0; peer < kRanks; ++peer) {
        char* const theirs = base + (uint64_t{stride} << 32) * static_cast<uint64_t>(peer) +
                             handles[0] * 128 + 16 * rank;
        EXPECT_EQ(*theirs, 0);
        *theirs = static_cast<char>(1 + rank + 10 * peer);
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<unsigned char>& device = devices[static_cast<size_t>(rank)];
      const char* const mine =
          at<char*>(device, caller.base) +
          (uint64_t{at<uint32_t>(device, caller.stride)} << 32) * static_cast<uint64_t>(rank) +
          handles[0] * 128;
      for (int peer = 0; peer < kRanks; ++peer) EXPECT_EQ(mine[16 * peer], 1 + peer + 10 * rank);
      EXPECT_NCCL(destroy_device(cluster, rank, device));
      EXPECT_EQ(destroy_device(cluster, rank, device), ncclInvalidArgument);  // a second time
    }
  }
}

// With 2.31 strides must be 1 (clients divide by them), and endpoints say that there are none.
TEST(DeviceCommunicators, WithoutNetworkingHaveValuesThatClientsCanDivideBy) {
  Cluster cluster(1);
  for (const DeviceCaller& caller : kDeviceCallers) {
    const auto devices = create_devices(cluster, caller, 0);
    const std::vector<unsigned char>& device = devices[0];
    EXPECT_EQ(at<uint64_t>(device, caller.resources), 0u) << "nothing was required";
    EXPECT_EQ(at<uint64_t>(device, caller.base), 0u);
    if (caller.version >= 23100) {
      EXPECT_EQ(at<int32_t>(device, 156), 1);
      EXPECT_EQ(at<int32_t>(device, 160), 1);
      EXPECT_EQ(at<uint32_t>(device, 200), reciprocal(1));
      EXPECT_EQ(at<int32_t>(device, 208), 1);
      EXPECT_EQ(at<int32_t>(device, 216), 1);
      EXPECT_EQ(at<uint32_t>(device, 224), UINT32_MAX);
      EXPECT_EQ(at<uint32_t>(device, 228), UINT32_MAX);
    }
    EXPECT_NCCL(destroy_device(cluster, 0, device));
    EXPECT_EQ(destroy_device(cluster, 0, device), ncclInvalidArgument);
  }
}

TEST(DeviceCommunicators, OfTheRuntimesVersionHaveThatLayout) {
  Cluster cluster(1);
  struct {
    ncclCommProperties_t head = NCCL_COMM_PROPERTIES_INITIALIZER;
    unsigned char rest[96] = {};
  } props;
  props.head.size = sizeof props;
  props.head.version = 23203;
  ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(0), &props.head));
  size_t bytes = 0;
  std::memcpy(&bytes, reinterpret_cast<unsigned char*>(&props) + 136, sizeof bytes);
  EXPECT_EQ(bytes, sizeof(ncclDevComm_t));

  DeviceCaller caller = kDeviceCallers[6];
  std::vector<unsigned char> needs = requirements_of(caller, 3, nullptr);
  needs[104] = 1;  // useRuntimeVersion
  ncclDevComm_t device = {};
  ASSERT_NCCL(ncclDevCommCreate(
      cluster.comm(0), reinterpret_cast<const ncclDevCommRequirements_t*>(needs.data()), &device));
  int version = 0;
  ASSERT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(device.version, static_cast<uint32_t>(version));
  EXPECT_EQ(device.lsaBarrier.nBarriers, 3);
  EXPECT_NCCL(ncclDevCommDestroy(cluster.comm(0), &device));
}

struct TablePage {
  struct {
    const void* base;
    uint64_t bytes;
    ncclWindow_t window;
  } entries[32];
  const TablePage* next;
};

ncclWindow_t find_window(const TablePage* page, const void* pointer) {
  for (; page != nullptr; page = page->next)
    for (const auto& entry : page->entries)
      if (entry.window != nullptr &&
          reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(entry.base) <
              entry.bytes)
        return entry.window;
  return nullptr;
}

TEST(DeviceCommunicators, ListTheWindowsOfBeforeAndOfAfter) {
  constexpr size_t kWindows = 40;  // more than a page has
  constexpr size_t kBytes = 4096;
  Cluster cluster(1);
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, kWindows * kBytes));
  std::vector<ncclWindow_t> windows(kWindows);
  ncclDevComm_t device;
  const auto base_of = [&](size_t i) { return static_cast<char*>(memory) + i * kBytes; };
  for (size_t i = 0; i < kWindows; ++i) {
    ASSERT_NCCL(ncclCommWindowRegister(cluster.comm(0), base_of(i), kBytes, &windows[i],
                                       NCCL_WIN_COLL_SYMMETRIC));
    if (i != 3) continue;
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.lsaBarrierCount = 1;
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(0), &reqs, &device));
  }
  const auto* const table = static_cast<const TablePage*>(device.windowTable);
  for (size_t i = 0; i < kWindows; ++i)
    EXPECT_EQ(find_window(table, base_of(i) + kBytes - 1), windows[i]) << i;
  EXPECT_EQ(find_window(table, base_of(kWindows)), nullptr);
  for (const size_t gone : {size_t{3}, size_t{35}}) {
    ASSERT_NCCL(ncclCommWindowDeregister(cluster.comm(0), windows[gone]));
    EXPECT_EQ(find_window(table, base_of(gone)), nullptr);
    windows[gone] = nullptr;
  }
  EXPECT_EQ(find_window(table, base_of(34)), windows[34]);
  EXPECT_NCCL(ncclDevCommDestroy(cluster.comm(0), &device));
  for (const ncclWindow_t window : windows)
    EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(0), window));
  EXPECT_NCCL(ncclMemFree(memory));
}

TEST(DeviceCommunicators, GiveTheirMemoryBackInEveryOrder) {
  Cluster cluster(2);
  const auto bytes_of = [&](int rank) {
    uint64_t bytes = 0;
    EXPECT_NCCL(ncclCommMemStats(cluster.comm(rank), ncclStatGpuMemTotal, &bytes));
    return bytes;
  };
  auto first = create_devices(cluster, kDeviceCallers[4], 1);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_NCCL(destroy_device(cluster, rank, first[static_cast<size_t>(rank)]));
  const uint64_t before[] = {bytes_of(0), bytes_of(1)};
  for (const bool in_order : {true, false}) {
    first = create_devices(cluster, kDeviceCallers[0], 1);
    const auto second = create_devices(cluster, kDeviceCallers[5], 4);
    EXPECT_GT(bytes_of(0), before[0]);
    for (int rank = 0; rank < 2; ++rank) {
      const auto i = static_cast<size_t>(rank);
      EXPECT_NCCL(destroy_device(cluster, rank, in_order ? first[i] : second[i]));
      EXPECT_NCCL(destroy_device(cluster, rank, in_order ? second[i] : first[i]));
    }
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(bytes_of(rank), before[rank]);
  }
  create_devices(cluster, kDeviceCallers[4], 1);  // the communicator's end takes it along
}

TEST(DeviceCommunicators, AreRefusedWhereRanksRequireDifferentThings) {
  Cluster cluster(2);
  ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t devices[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    reqs.lsaBarrierCount = 3 + rank;
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(rank), &reqs, &devices[rank]));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  const std::string error = ncclGetLastError(nullptr);
  EXPECT_NE(error.find("3 barriers"), std::string::npos) << error;
  EXPECT_NE(error.find("4 barriers"), std::string::npos) << error;
  // All ranks have failed, and all can go on.
  for (const auto& device : create_devices(cluster, kDeviceCallers[4], 1)) (void)device;
}

TEST(DeviceCommunicators, AreRefusedWithTheRequirementThatCannotBeMet) {
  Cluster cluster(1);
  using Change = void (*)(ncclDevCommRequirements_t&);
  struct Bad {
    const char* field;
    Change change;
  };
  static ncclTeamRequirements_t team = {nullptr, {1, 0, 1}, true, nullptr};
  static ncclTeamRequirements_t other_team = {nullptr, {2, 0, 1}, true, nullptr};
  static ncclDevResourceRequirements_t with_signals = {nullptr, 0, 0,       nullptr,
                                                       2,       0, nullptr, nullptr};
  static ncclDevResourceRequirements_t circle = {&circle, 8, 8, nullptr, 0, 0, nullptr, nullptr};
  static ncclDevResourceRequirements_t odd = {nullptr, 8, 384, nullptr, 0, 0, nullptr, nullptr};
  for (const Bad& bad : {
           Bad{"barrierCount", [](auto& r) { r.barrierCount = 1; }},
           Bad{"railGinBarrierCount", [](auto& r) { r.railGinBarrierCount = 1; }},
           Bad{"worldGinBarrierCount", [](auto& r) { r.worldGinBarrierCount = 1; }},
           Bad{"ginSignalCount", [](auto& r) { r.ginSignalCount = 1; }},
           Bad{"ginCounterCount", [](auto& r) { r.ginCounterCount = 1; }},
           Bad{"ginConnectionType",
               [](auto& r) { r.ginConnectionType = static_cast<ncclGinConnectionType_t>(3); }},
           Bad{"ginContextCount",
               [](auto& r) {
                 r.ginForceEnable = true;
                 r.ginContextCount = 1025;
               }},
           Bad{"signals and",
               [](auto& r) {
                 r.ginForceEnable = true;
                 r.ginSignalCount = INT32_MAX;
               }},
           Bad{"ginForceEnable",  // by a header whose kernels have queues of another format
               [](auto& r) {
                 r.version = 22907;
                 r.ginForceEnable = true;
               }},
           Bad{"lsaMultimem", [](auto& r) { r.lsaMultimem = true; }},
           Bad{"lsaMultimem, or multimem of a team",
               [](auto& r) { r.teamRequirementsList = &team; }},
           Bad{"multimem of a team of 2 ranks",
               [](auto& r) { r.teamRequirementsList = &other_team; }},
           Bad{"ginSignalCount of a list",
               [](auto& r) { r.resourceRequirementsList = &with_signals; }},
           Bad{"circle", [](auto& r) { r.resourceRequirementsList = &circle; }},
           Bad{"powers of two", [](auto& r) { r.resourceRequirementsList = &odd; }},
           Bad{"lsaBarrierCount", [](auto& r) { r.lsaBarrierCount = -1; }},
       }) {
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    bad.change(reqs);
    ncclDevComm_t device;
    EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), &reqs, &device), ncclInvalidArgument) << bad.field;
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(bad.field), std::string::npos)
        << ncclGetLastError(nullptr);
  }
  // More barriers than there is memory for.
  ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  reqs.lsaBarrierCount = INT32_MAX;
  ncclDevComm_t device;
  EXPECT_NE(ncclDevCommCreate(cluster.comm(0), &reqs, &device), ncclSuccess);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("2147483647 barriers"), std::string::npos)
      << ncclGetLastError(nullptr);
}

// Offsets of the headers' structs: device-api reference, sections 2 and 9.1.
struct NetworkCaller {
  unsigned version;
  int context;  // bytes of a context's struct
  int connections, type, handle, signals, counters, shadows, contexts, strong;
  int dense, rail, hybrid_lsa, hybrid_rail, world;
};
constexpr NetworkCaller kNetworkCallers[] = {
    {23003, 48, 144, 145, 152, 184, 188, 192, 200, 205, 112, 136, 216, 224, 232},
    {23007, 72, 144, 145, 152, 184, 188, 192, 200, 205, 112, 136, 216, 224, 232},
    {23102, 72, 96, 98, 104, 136, 140, 144, 152, 164, 64, 88, 176, 184, 192},
    {23203, 80, 96, 98, 104, 136, 140, 144, 152, 164, 64, 88, 176, 184, 192}};

TEST(DeviceCommunicators, HaveNetworkingWhereEachHeaderReadsIt) {
  Cluster cluster(2);
  for (const NetworkCaller& caller : kNetworkCallers) {
    SCOPED_TRACE(caller.version);
    std::vector<std::vector<unsigned char>> devices(2, std::vector<unsigned char>(248));
    std::vector<ncclDevResourceRequirements_t> lists(2);
    ncclGinSignal_t signals[2] = {};
    ncclGinCounter_t counters[2] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 2; ++i) {
      lists[i] = {nullptr, 0, 0, nullptr, 7, 8, &signals[i], &counters[i]};
      ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      reqs.version = caller.version;
      reqs.resourceRequirementsList = &lists[i];
      reqs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
      reqs.ginContextCount = 3;
      reqs.ginSignalCount = 5;
      reqs.ginCounterCount = 6;
      reqs.worldGinBarrierCount = 4;
      reqs.railGinBarrierCount = 3;
      reqs.barrierCount = 2;
      ASSERT_NCCL(ncclDevCommCreate(cluster.comm(static_cast<int>(i)), &reqs,
                                    reinterpret_cast<ncclDevComm_t*>(devices[i].data())));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<unsigned char>& device = devices[i];
      EXPECT_EQ(device[caller.connections], 1);
      EXPECT_EQ(device[caller.type], NCCL_GIN_TYPE_PROXY);
      EXPECT_EQ(device[caller.strong], 1);
      EXPECT_EQ(at<uint32_t>(device, caller.contexts), 3u);
      // Two ranks of one team: 5 of the kernel's own, 4 * 2, 3 * 1, 2 * 2 and 2 * 1 of barriers.
      EXPECT_EQ(at<uint32_t>(device, caller.world), 5u);
      EXPECT_EQ(at<uint32_t>(device, caller.rail), 13u);
      EXPECT_EQ(at<uint32_t>(device, caller.dense), 16u);
      EXPECT_EQ(at<uint32_t>(device, caller.hybrid_rail), 20u);
      EXPECT_EQ(at<int32_t>(device, caller.hybrid_lsa + 4), 2);
      EXPECT_EQ(signals[i], 22u);
      EXPECT_EQ(counters[i], 6u);
      EXPECT_EQ(at<int32_t>(device, caller.signals), 29);
      EXPECT_EQ(at<int32_t>(device, caller.counters), 14);
      const auto* const shadows = at<const uint64_t*>(device, caller.shadows);
      for (size_t word = 0; word < 3 * 29; ++word) EXPECT_EQ(shadows[word], 0u);
      for (int context = 0; context < 3; ++context) {
        const auto* const place =
            at<const unsigned char*>(device, caller.handle) + context * caller.context;
        std::vector<unsigned char> read(place, place + caller.context);
        EXPECT_EQ(at<int32_t>(read, 0), 2);
        const auto depth = at<uint32_t>(read, 4);
        EXPECT_EQ(depth & (depth - 1), 0u);
        const auto* const queues = at<const uint64_t*>(read, 8);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(queues) % 16, 0u);
        EXPECT_EQ(std::count(queues, queues + 2 * 16 * depth, 0u), ptrdiff_t{2 * 16 * depth});
        for (const int indices : {16, 24}) EXPECT_EQ(at<const uint32_t*>(read, indices)[1], 0u);
        EXPECT_EQ(at<const uint64_t*>(read, 32)[13], 0u);
        EXPECT_EQ(at<const uint64_t*>(read, 40)[28], 0u);
        if (caller.context < 72) continue;
        EXPECT_EQ(at<const uint64_t*>(read, 48)[28], 0u);
        for (const int indices : {56, 64}) EXPECT_EQ(at<const uint32_t*>(read, indices)[1], 0u);
        if (caller.context == 80) {
          EXPECT_EQ(read[72], 0);
        }
      }
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_NCCL(destroy_device(cluster, static_cast<int>(i), devices[i]));
  }
}

// 2.28 and 2.29.2 have no kind of barrier but the load-store team's: theirs of all ranks is it.
TEST(DeviceCommunicators, OfOlderCallersTakeBarriersOfAllRanksAsTheTeams) {
  Cluster cluster(1);
  for (const DeviceCaller& caller : {kDeviceCallers[0], kDeviceCallers[1]}) {
    std::vector<unsigned char> needs = requirements_of(caller, 2, nullptr);
    const int all = 6, rail = 6;
    std::memcpy(needs.data() + caller.barriers_at - 4, &all, sizeof all);
    std::memcpy(needs.data() + caller.barriers_at + 4, &rail, sizeof rail);
    std::vector<unsigned char> device(caller.bytes);
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(0),
                                  reinterpret_cast<const ncclDevCommRequirements_t*>(needs.data()),
                                  reinterpret_cast<ncclDevComm_t*>(device.data())));
    EXPECT_EQ(at<int32_t>(device, caller.lsa_barrier + 4), all);
    EXPECT_NCCL(destroy_device(cluster, 0, device));
    const int signals = 1;
    std::memcpy(needs.data() + caller.barriers_at + 24, &signals, sizeof signals);
    EXPECT_EQ(ncclDevCommCreate(cluster.comm(0),
                                reinterpret_cast<const ncclDevCommRequirements_t*>(needs.data()),
                                reinterpret_cast<ncclDevComm_t*>(device.data())),
              ncclInvalidUsage);
  }
}

TEST(DeviceCommunicators, RefuseArgumentsThatAreNone) {
  Cluster cluster(1);
  ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t device = {};
  EXPECT_EQ(ncclDevCommCreate(nullptr, &reqs, &device), ncclInvalidArgument);
  EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), nullptr, &device), ncclInvalidArgument);
  EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), &reqs, nullptr), ncclInvalidArgument);
  reqs.magic = 0;
  EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), &reqs, &device), ncclInvalidUsage);
  reqs.magic = NCCL_API_MAGIC;
  reqs.version = 23300;  // a header of tomorrow
  EXPECT_EQ(ncclDevCommCreate(cluster.comm(0), &reqs, &device), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("23300"), std::string::npos);
  EXPECT_EQ(ncclDevCommDestroy(cluster.comm(0), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclDevCommDestroy(cluster.comm(0), &device), ncclInvalidArgument);
  EXPECT_EQ(ncclDevCommDestroy(nullptr, &device), ncclInvalidArgument);
}

// ---- Multicast

void fill(void* address, int value, size_t bytes) {
  EXPECT_CUDA(cudaMemset(address, value, bytes));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

/// ncclMemAlloc'd memory of each rank as a window.
class MulticastWindow {
 public:
  MulticastWindow(const Cluster& cluster, size_t bytes, size_t offset = 0)
      : cluster_(cluster), bytes_(bytes), offset_(offset) {
    const auto ranks = static_cast<size_t>(cluster.nranks());
    memories_.resize(ranks);
    windows_.resize(ranks);
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks; ++i) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(i)));
      EXPECT_NCCL(ncclMemAlloc(&memories_[i], bytes + offset));
      EXPECT_NCCL(ncclCommWindowRegister(cluster.comm(static_cast<int>(i)), own(i), bytes,
                                         &windows_[i], NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ~MulticastWindow() {
    for (size_t i = 0; i < windows_.size(); ++i) end(i);
  }
  void end(size_t rank) {
    if (memories_[rank] == nullptr) return;
    EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(static_cast<int>(rank)), windows_[rank]));
    EXPECT_NCCL(ncclMemFree(std::exchange(memories_[rank], nullptr)));
  }
  unsigned char* own(size_t rank) const {
    return static_cast<unsigned char*>(memories_[rank]) + offset_;
  }
  ncclWindow_t operator[](size_t rank) const { return windows_[rank]; }
  /// The address of all copies, as the host tells it.
  unsigned char* all(size_t rank) const {
    void* address = nullptr;
    EXPECT_NCCL(ncclGetLsaMultimemDevicePointer(windows_[rank], 0, &address));
    return static_cast<unsigned char*>(address);
  }
  /// As kernels compute it.
  unsigned char* all(size_t rank, void* base) const {
    uint32_t offset = 0;
    std::memcpy(&offset, reinterpret_cast<const unsigned char*>(windows_[rank]) + 28, 4);
    return static_cast<unsigned char*>(base) + uint64_t{offset} * 4096;
  }
  /// Each rank stores to all copies: the bytes are in all of them, and no others change.
  void check(void* const* bases) const {
    for (size_t rank = 0; rank < windows_.size(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
      ASSERT_NE(all(rank), nullptr);
      EXPECT_EQ(all(rank, bases[rank]), all(rank));
      for (size_t each = 0; each < windows_.size(); ++each) std::memset(own(each), 0x11, bytes_);
      const int value = static_cast<int>(0x80 + rank);
      fill(all(rank) + 16, value, bytes_ - 32);
      for (size_t each = 0; each < windows_.size(); ++each)
        for (size_t i = 0; i < bytes_; ++i)
          ASSERT_EQ(own(each)[i], i < 16 || i >= bytes_ - 16 ? 0x11 : value)
              << "stored by " << rank << ", of " << each << ", byte " << i;
    }
  }

 private:
  const Cluster& cluster_;
  size_t bytes_, offset_;
  std::vector<void*> memories_;
  std::vector<ncclWindow_t> windows_;
};

/// Device communicators with multicast addresses.
std::vector<ncclDevComm_t> create_multicast(const Cluster& cluster, int barriers,
                                            ncclResult_t result = ncclSuccess) {
  std::vector<ncclDevComm_t> devices(static_cast<size_t>(cluster.nranks()));
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.lsaMultimem = true;
    reqs.lsaBarrierCount = barriers;
    EXPECT_NCCL(ncclDevCommCreate(cluster.comm(rank), &reqs, &devices[static_cast<size_t>(rank)]));
  }
  EXPECT_EQ(ncclGroupEnd(), result);
  return devices;
}

std::vector<void*> bases_of(const std::vector<ncclDevComm_t>& devices) {
  std::vector<void*> bases;
  for (const ncclDevComm_t& device : devices) bases.push_back(device.lsaMultimem.mcBasePtr);
  return bases;
}

class Multicast : public testing::Test {
  void SetUp() override {
    if (std::getenv("NCCL_NVLS_ENABLE") != nullptr ||
        std::getenv("NICCOLITE_VIRTUAL_FAULT") != nullptr)
      GTEST_SKIP() << "runs where there is multicast";
  }
};

TEST_F(Multicast, ReachesWindowsOfBeforeAndOfAfter) {
  for (const int nranks : {2, 3, 8}) {
    SCOPED_TRACE(nranks);
    Cluster cluster(nranks);
    MulticastWindow before(cluster, 8192), inside(cluster, 4096, 3 * 4096);
    EXPECT_EQ(before.all(0), nullptr) << "nobody has asked for it";
    const std::vector<ncclDevComm_t> devices = create_multicast(cluster, 2);
    const std::vector<void*> bases = bases_of(devices);
    MulticastWindow after(cluster, 12288);
    for (const MulticastWindow* window : {&before, &inside, &after}) window->check(bases.data());
    // The resources, as kernels compute them: a counter of a barrier.
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      const ncclDevComm_t& device = devices[rank];
      const size_t place = device.lsaBarrier.bufHandle * size_t{128} + 4 * sizeof(uint32_t);
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
      fill(static_cast<char*>(bases[rank]) +
               uint64_t{device.resourceWindow_inlined.mcOffset4K} * 4096 + place,
           static_cast<int>(rank + 1), 4);
      for (size_t each = 0; each < devices.size(); ++each) {
        uint32_t word = 0;
        std::memcpy(&word,
                    device.resourceWindow_inlined.lsaFlatBase +
                        (uint64_t{device.resourceWindow_inlined.stride4G} << 32) * each + place,
                    sizeof word);
        EXPECT_EQ(word, 0x01010101u * (rank + 1));
      }
    }
    for (size_t rank = 0; rank < devices.size(); ++rank)
      EXPECT_NCCL(ncclDevCommDestroy(cluster.comm(static_cast<int>(rank)), &devices[rank]));
    after.check(bases.data());  // a window outlives the device communicator
  }
}

TEST_F(Multicast, HandsPartsOfTheRangeOutAgain) {
  constexpr int kRanks = 2;
  Cluster cluster(kRanks);
  const std::vector<void*> bases = bases_of(create_multicast(cluster, 0));
  std::vector<std::unique_ptr<MulticastWindow>> windows;
  std::set<unsigned char*> places;
  size_t made = 0;
  for (int round = 0; round < 8; ++round) {
    for (; windows.size() < 5; ++made)
      windows.push_back(std::make_unique<MulticastWindow>(
          cluster, 4096 * (1 + (windows.size() + static_cast<size_t>(round)) % 3)));
    for (const auto& window : windows) {
      window->check(bases.data());
      places.insert(window->all(0));
    }
    // Rank 1 keeps one that rank 0 has ended, while another is made.
    windows[2]->end(0);
    MulticastWindow meanwhile(cluster, 4096);
    meanwhile.check(bases.data());
    windows.erase(windows.begin() + 2);
    windows.erase(windows.begin() + round % 2);
  }
  EXPECT_LT(places.size(), made - 6) << "no part was used again";
}

TEST_F(Multicast, IsLaidOutAsTheCallersHeaderReadsIt) {
  Cluster cluster(2);
  struct Places {
    size_t lsa_multimem;  // of the requirement
    int base, offset;
  };
  constexpr Places kPlaces[] = {{16, 112, 68}, {32, 112, 68}, {32, 112, 68}, {32, 120, 76},
                                {32, 120, 76}, {32, 72, 60},  {32, 72, 60}};
  for (size_t i = 0; i < std::size(kDeviceCallers); ++i) {
    const DeviceCaller& caller = kDeviceCallers[i];
    SCOPED_TRACE(caller.header);
    std::vector<std::vector<unsigned char>> devices(2, std::vector<unsigned char>(caller.bytes));
    ASSERT_NCCL(ncclGroupStart());
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<unsigned char> needs = requirements_of(caller, 1, nullptr);
      needs[kPlaces[i].lsa_multimem] = 1;
      ASSERT_NCCL(
          ncclDevCommCreate(cluster.comm(static_cast<int>(rank)),
                            reinterpret_cast<const ncclDevCommRequirements_t*>(needs.data()),
                            reinterpret_cast<ncclDevComm_t*>(devices[rank].data())));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (size_t rank = 0; rank < 2; ++rank) {
      uint32_t offset = 0;  // the resources' record has it, too
      std::memcpy(&offset, at<const unsigned char*>(devices[rank], caller.resources) + 28, 4);
      EXPECT_EQ(at<uint32_t>(devices[rank], kPlaces[i].offset), offset);
      char* const base = at<char*>(devices[rank], kPlaces[i].base);
      ASSERT_NE(base, nullptr);
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
      fill(base + uint64_t{offset} * 4096, 7, 4);
      for (uint64_t each = 0; each < 2; ++each)
        EXPECT_EQ(
            at<char*>(
                devices[rank],
                caller.base)[(uint64_t{at<uint32_t>(devices[rank], caller.stride)} << 32) * each],
            7);
      fill(base + uint64_t{offset} * 4096, 0, 4);
    }
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_NCCL(destroy_device(cluster, static_cast<int>(rank), devices[rank]));
  }
}

// The range has room for a device's memory. Windows of the same memory use it up.
TEST_F(Multicast, IsNotOfWindowsForWhichThereIsNoRoom) {
  constexpr int kRanks = 2;
  Cluster cluster(kRanks);
  create_multicast(cluster, 0);
  size_t free = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  const size_t bytes = total / 4 + (size_t{1} << 20);  // three times
  std::vector<void*> memories(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(ncclMemAlloc(&memories[static_cast<size_t>(rank)], bytes));
  }
  const auto add = [&] {
    std::vector<ncclWindow_t> made(kRanks);
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < kRanks; ++i)
      EXPECT_NCCL(ncclCommWindowRegister(cluster.comm(static_cast<int>(i)), memories[i], bytes,
                                         &made[i], NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_NCCL(ncclGroupEnd());
    return made;
  };
  const auto address_of = [](ncclWindow_t window) {
    void* address = nullptr;
    EXPECT_NCCL(ncclGetLsaMultimemDevicePointer(window, 0, &address));
    return address;
  };
  std::vector<std::vector<ncclWindow_t>> windows;
  for (int i = 0; i < 6; ++i) windows.push_back(add());
  for (size_t i = 0; i < windows.size(); ++i)
    for (const ncclWindow_t window : windows[i]) {
      EXPECT_EQ(address_of(window) != nullptr, i < 3) << i;
      uint32_t offset = 0;
      std::memcpy(&offset, reinterpret_cast<const unsigned char*>(window) + 28, sizeof offset);
      EXPECT_EQ(offset == UINT32_MAX, i >= 3);
      void* own = nullptr;  // the window works
      EXPECT_NCCL(ncclGetLsaDevicePointer(window, 0, 1, &own));
      EXPECT_NE(own, nullptr);
    }
  const auto end = [&](std::vector<ncclWindow_t>& all) {
    for (size_t i = 0; i < kRanks; ++i)
      EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(static_cast<int>(i)), all[i]));
  };
  void* const first = address_of(windows[0][0]);
  end(windows[0]);
  windows[0] = add();
  EXPECT_EQ(address_of(windows[0][0]), first);
  for (auto& all : windows) end(all);
  for (void* memory : memories) EXPECT_NCCL(ncclMemFree(memory));
}

TEST_F(Multicast, IsForTheLoadStoreTeamOfAListToo) {
  Cluster cluster(2);
  ncclMultimemHandle_t handles[2] = {};
  ncclTeamRequirements_t teams[2] = {};
  ncclDevComm_t devices[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    teams[rank] = {nullptr, ncclTeamLsa(cluster.comm(rank)), true, &handles[rank]};
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.teamRequirementsList = &teams[rank];
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(rank), &reqs, &devices[rank]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  MulticastWindow window(cluster, 4096);
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_NE(handles[rank].mcBasePtr, nullptr);
    EXPECT_EQ(handles[rank].mcBasePtr, devices[rank].lsaMultimem.mcBasePtr);
    void* address = nullptr;
    ASSERT_NCCL(ncclGetMultimemDevicePointer(window[rank], 64, handles[rank], &address));
    EXPECT_EQ(address, window.all(rank) + 64);
    EXPECT_EQ(ncclGetMultimemDevicePointer(window[rank], 4096, handles[rank], &address),
              ncclInvalidArgument);
    EXPECT_EQ(ncclGetLsaMultimemDevicePointer(window[rank], 4096, &address), ncclInvalidArgument);
  }
}

TEST_F(Multicast, DiffersBetweenNoRanks) {
  Cluster cluster(2);
  ncclDevComm_t devices[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.lsaMultimem = rank == 1;
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(rank), &reqs, &devices[rank]));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("rank 0 does not"), std::string::npos)
      << ncclGetLastError(nullptr);
  create_multicast(cluster, 1);
}

TEST_F(Multicast, GivesItsMemoryBackWithTheCommunicator) {
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    EXPECT_CUDA(cudaSetDevice(1));
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  };
  std::vector<size_t> free;
  for (int round = 0; round < 3; ++round) {
    {
      Cluster cluster(2);
      MulticastWindow window(cluster, 1 << 20);
      create_multicast(cluster, 3);
    }
    free.push_back(free_bytes());
  }
  EXPECT_EQ(free[1], free[2]);
}

// Where a rank wants none, or binding fails, or does not end: api_test_multicast_... sets it.
TEST(WithoutMulticast, IsRefusedOnAllRanksWithTheReason) {
  const char* const off = std::getenv("NCCL_NVLS_ENABLE");
  const char* const fault = std::getenv("NICCOLITE_VIRTUAL_FAULT");
  if (off == nullptr && fault == nullptr) GTEST_SKIP() << "runs where there is none";
  Cluster cluster(2);
  MulticastWindow window(cluster, 4096);
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(0), &props));
  EXPECT_EQ(props.multimemSupport, off == nullptr);
  create_multicast(cluster, 1, ncclInvalidArgument);
  const std::string error = ncclGetLastError(nullptr);
  const std::string kind = fault == nullptr ? "" : fault;
  const char* const reason = kind == "unbound" ? "binding memory to a multicast team: "
                             : kind == "hung"  ? "has not ended in 5 s"
                             : kind == "deaf"  ? "trying a multicast team"
                                               : "NCCL_NVLS_ENABLE=0";
  EXPECT_NE(error.find("lsaMultimem"), std::string::npos) << error;
  EXPECT_NE(error.find(reason), std::string::npos) << error;
  EXPECT_EQ(window.all(0), nullptr);
  // All else works.
  create_devices(cluster, kDeviceCallers[4], 1);
}

// NCCL_LSA_TEAM_SIZE is read once a process: api_test_teams sets it to 2.
class LoadStoreTeams : public testing::Test {
  void SetUp() override {
    const char* const size = std::getenv("NCCL_LSA_TEAM_SIZE");
    if (size == nullptr || std::string(size) != "2")
      GTEST_SKIP() << "runs with NCCL_LSA_TEAM_SIZE=2";
  }
};

TEST_F(LoadStoreTeams, AreOfTheSizeThatWasAskedFor) {
  Cluster cluster(4);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(ncclTeamLsa(cluster.comm(rank)) == (ncclTeam_t{2, rank % 2, 1}));
    EXPECT_TRUE(ncclTeamRail(cluster.comm(rank)) == (ncclTeam_t{2, rank / 2, 2}));
    ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
    ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(rank), &props));
    EXPECT_EQ(props.nLsaTeams, 2);
    EXPECT_TRUE(props.deviceApiSupport);
    props.version = 22907;
    ASSERT_NCCL(ncclCommQueryProperties(cluster.comm(rank), &props));
    EXPECT_FALSE(props.deviceApiSupport) << "2.29 takes it for all ranks";
  }
  Cluster odd(3);
  EXPECT_TRUE(ncclTeamLsa(odd.comm(1)) == (ncclTeam_t{1, 0, 1})) << "2 and 3 have no divisor";
}

TEST_F(LoadStoreTeams, SeeTheirOwnCopiesOfAWindowAndNullBeyond) {
  constexpr int kRanks = 4;
  constexpr size_t kBytes = 4096;
  Cluster cluster(kRanks);
  std::vector<int*> memories(kRanks);
  std::vector<ncclWindow_t> windows(kRanks);
  ASSERT_NCCL(ncclGroupStart());
  for (size_t i = 0; i < kRanks; ++i) {
    ASSERT_CUDA(cudaSetDevice(static_cast<int>(i)));
    ASSERT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memories[i]), kBytes));
    *memories[i] = static_cast<int>(100 + i);
    ASSERT_NCCL(ncclCommWindowRegister(cluster.comm(static_cast<int>(i)), memories[i], kBytes,
                                       &windows[i], NCCL_WIN_COLL_SYMMETRIC));
  }
  ASSERT_NCCL(ncclGroupEnd());
  const auto devices = create_devices(cluster, kDeviceCallers[4], 1);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<size_t>(rank);
    void* pointer = nullptr;
    for (int peer = 0; peer < kRanks; ++peer) {
      ASSERT_NCCL(ncclGetPeerDevicePointer(windows[i], 0, peer, &pointer));
      if (peer / 2 != rank / 2) {
        EXPECT_EQ(pointer, nullptr);
      } else {
        ASSERT_NE(pointer, nullptr);
        EXPECT_EQ(*static_cast<int*>(pointer), 100 + peer);
      }
    }
    EXPECT_EQ(ncclGetPeerDevicePointer(windows[i], 0, kRanks, &pointer), ncclInvalidArgument);
    for (int member = 0; member < 2; ++member) {
      ASSERT_NCCL(ncclGetLsaDevicePointer(windows[i], 0, member, &pointer));
      EXPECT_EQ(*static_cast<int*>(pointer), 100 + rank / 2 * 2 + member);
      // As kernels compute it.
      char* base = nullptr;
      uint32_t stride = 0;
      int32_t lsa_rank = -1, world_rank = -1;
      const auto* const record = reinterpret_cast<const unsigned char*>(windows[i]);
      std::memcpy(&base, record + 8, sizeof base);
      std::memcpy(&lsa_rank, record + 16, sizeof lsa_rank);
      std::memcpy(&world_rank, record + 20, sizeof world_rank);
      std::memcpy(&stride, record + 24, sizeof stride);
      EXPECT_EQ(lsa_rank, rank % 2);
      EXPECT_EQ(world_rank, rank);
      EXPECT_EQ(base + (uint64_t{stride} << 32) * static_cast<uint64_t>(member), pointer);
    }
    EXPECT_EQ(ncclGetLsaDevicePointer(windows[i], 0, 2, &pointer), ncclInvalidArgument);
    EXPECT_EQ(at<int32_t>(devices[i], 20), rank % 2);
    EXPECT_EQ(at<int32_t>(devices[i], 24), 2);
  }
  for (size_t i = 0; i < kRanks; ++i) {
    EXPECT_NCCL(destroy_device(cluster, static_cast<int>(i), devices[i]));
    EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(static_cast<int>(i)), windows[i]));
    EXPECT_NCCL(ncclMemFree(memories[i]));
  }
}

TEST_F(LoadStoreTeams, HaveMulticastAddressesOfTheirOwn) {
  Cluster cluster(4);
  const std::vector<void*> bases = bases_of(create_multicast(cluster, 1));
  MulticastWindow window(cluster, 4096);
  for (size_t rank = 0; rank < 4; ++rank) {
    for (size_t each = 0; each < 4; ++each) std::memset(window.own(each), 1, 4096);
    EXPECT_EQ(window.all(rank, bases[rank]), window.all(rank));
    EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
    fill(window.all(rank), 9, 16);
    for (size_t each = 0; each < 4; ++each)
      EXPECT_EQ(window.own(each)[3], each / 2 == rank / 2 ? 9 : 1);
  }
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
