// Multicast addresses of windows and device communicators, and load-store teams of some of a
// machine's ranks.
#include <cstdlib>
#include <iterator>
#include <memory>
#include <set>

#include "tests/api/device_communicators.h"

namespace niccolite::test {
namespace {

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
      set_bytes(static_cast<char*>(bases[rank]) +
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
      std::memcpy(&offset, field<const unsigned char*>(devices[rank], caller.resources) + 28, 4);
      EXPECT_EQ(field<uint32_t>(devices[rank], kPlaces[i].offset), offset);
      char* const base = field<char*>(devices[rank], kPlaces[i].base);
      ASSERT_NE(base, nullptr);
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
      set_bytes(base + uint64_t{offset} * 4096, 7, 4);
      for (uint64_t each = 0; each < 2; ++each)
        EXPECT_EQ(field<char*>(
                      devices[rank],
                      caller.base)[(uint64_t{field<uint32_t>(devices[rank], caller.stride)} << 32) *
                                   each],
                  7);
      set_bytes(base + uint64_t{offset} * 4096, 0, 4);
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
    EXPECT_EQ(field<int32_t>(devices[i], 20), rank % 2);
    EXPECT_EQ(field<int32_t>(devices[i], 24), 2);
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
    set_bytes(window.all(rank), 9, 16);
    for (size_t each = 0; each < 4; ++each)
      EXPECT_EQ(window.own(each)[3], each / 2 == rank / 2 ? 9 : 1);
  }
}

}  // namespace
}  // namespace niccolite::test
