// Device communicators are laid out as each caller's header reads them, and refused with the
// reason where their requirements cannot be met.
#include "tests/api/device_communicators.h"

namespace niccolite::test {
namespace {

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
        EXPECT_EQ(field<uint32_t>(device, caller.magic), uint32_t{NCCL_API_MAGIC});
        EXPECT_EQ(field<uint32_t>(device, caller.magic + 4), caller.version);
      }
      EXPECT_EQ(field<int32_t>(device, caller.rank), rank);
      EXPECT_EQ(field<int32_t>(device, caller.rank + 4), kRanks);
      EXPECT_EQ(field<uint32_t>(device, caller.rank + 8), reciprocal(kRanks));
      EXPECT_EQ(field<int32_t>(device, caller.lsa_rank), rank);
      EXPECT_EQ(field<int32_t>(device, caller.lsa_rank + 4), kRanks);
      EXPECT_EQ(field<uint32_t>(device, caller.lsa_rank + 8), reciprocal(kRanks));
      EXPECT_NE(field<uint64_t>(device, caller.table), 0u);
      EXPECT_EQ(field<int32_t>(device, caller.lsa_barrier + 4), kBarriers);
      if (caller.abort_flag >= 0) {
        ASSERT_NE(field<const uint32_t*>(device, caller.abort_flag), nullptr);
        EXPECT_EQ(*field<const uint32_t*>(device, caller.abort_flag), 0u);
      }
      // The window's record, and its copy in the struct.
      const auto* const record = field<const unsigned char*>(device, caller.resources);
      ASSERT_NE(record, nullptr);
      char* base = nullptr;
      uint32_t stride = 0;
      std::memcpy(&base, record + 8, sizeof base);
      std::memcpy(&stride, record + 24, sizeof stride);
      EXPECT_EQ(field<char*>(device, caller.base), base);
      EXPECT_EQ(field<uint32_t>(device, caller.stride), stride);
      // Every rank reaches every other's buffer, which is zeros and begins behind the barriers.
      EXPECT_EQ(handles[static_cast<size_t>(rank)], handles[0]);
      EXPECT_EQ(handles[0] * 128 % 512, 0u);
      EXPECT_GE(handles[0] * 128,
                field<uint32_t>(device, caller.lsa_barrier) * 128 + (3 + kRanks) * kBarriers * 4);
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
          field<char*>(device, caller.base) +
          (uint64_t{field<uint32_t>(device, caller.stride)} << 32) * static_cast<uint64_t>(rank) +
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
    EXPECT_EQ(field<uint64_t>(device, caller.resources), 0u) << "nothing was required";
    EXPECT_EQ(field<uint64_t>(device, caller.base), 0u);
    if (caller.version >= 23100) {
      EXPECT_EQ(field<int32_t>(device, 156), 1);
      EXPECT_EQ(field<int32_t>(device, 160), 1);
      EXPECT_EQ(field<uint32_t>(device, 200), reciprocal(1));
      EXPECT_EQ(field<int32_t>(device, 208), 1);
      EXPECT_EQ(field<int32_t>(device, 216), 1);
      EXPECT_EQ(field<uint32_t>(device, 224), UINT32_MAX);
      EXPECT_EQ(field<uint32_t>(device, 228), UINT32_MAX);
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
      EXPECT_EQ(field<uint32_t>(device, caller.contexts), 3u);
      // Two ranks of one team: 5 of the kernel's own, 4 * 2, 3 * 1, 2 * 2 and 2 * 1 of barriers.
      EXPECT_EQ(field<uint32_t>(device, caller.world), 5u);
      EXPECT_EQ(field<uint32_t>(device, caller.rail), 13u);
      EXPECT_EQ(field<uint32_t>(device, caller.dense), 16u);
      EXPECT_EQ(field<uint32_t>(device, caller.hybrid_rail), 20u);
      EXPECT_EQ(field<int32_t>(device, caller.hybrid_lsa + 4), 2);
      EXPECT_EQ(signals[i], 22u);
      EXPECT_EQ(counters[i], 6u);
      EXPECT_EQ(field<int32_t>(device, caller.signals), 29);
      EXPECT_EQ(field<int32_t>(device, caller.counters), 14);
      const auto* const shadows = field<const uint64_t*>(device, caller.shadows);
      for (size_t word = 0; word < 3 * 29; ++word) EXPECT_EQ(shadows[word], 0u);
      for (int context = 0; context < 3; ++context) {
        const auto* const place =
            field<const unsigned char*>(device, caller.handle) + context * caller.context;
        std::vector<unsigned char> read(place, place + caller.context);
        EXPECT_EQ(field<int32_t>(read, 0), 2);
        const auto depth = field<uint32_t>(read, 4);
        EXPECT_EQ(depth & (depth - 1), 0u);
        const auto* const queues = field<const uint64_t*>(read, 8);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(queues) % 16, 0u);
        EXPECT_EQ(std::count(queues, queues + 2 * 16 * depth, 0u), ptrdiff_t{2 * 16 * depth});
        for (const int indices : {16, 24}) EXPECT_EQ(field<const uint32_t*>(read, indices)[1], 0u);
        EXPECT_EQ(field<const uint64_t*>(read, 32)[13], 0u);
        EXPECT_EQ(field<const uint64_t*>(read, 40)[28], 0u);
        if (caller.context < 72) continue;
        EXPECT_EQ(field<const uint64_t*>(read, 48)[28], 0u);
        for (const int indices : {56, 64}) EXPECT_EQ(field<const uint32_t*>(read, indices)[1], 0u);
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
    EXPECT_EQ(field<int32_t>(device, caller.lsa_barrier + 4), all);
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

}  // namespace
}  // namespace niccolite::test
