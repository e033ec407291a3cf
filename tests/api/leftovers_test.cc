// A thousand rounds of what programs do again and again leave no descriptor, thread, mapping or
// device memory behind; calls that fail included.
#include "tests/api/usage.h"
#include "tests/api/working.h"

namespace niccolite::test {
namespace {

constexpr int kRanks = 3;

/// One call for every rank, in a group; what the group came to.
template <typename Call>
ncclResult_t grouped(const Cluster& cluster, Call&& call) {
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) call(rank);
  return ncclGroupEnd();
}

void destroy(const std::vector<ncclComm_t>& comms) {
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Leftovers, OfSplits) {
  Cluster cluster(kRanks);
  expect_nothing_left([&] {
    std::vector<ncclComm_t> made(kRanks);
    EXPECT_NCCL(grouped(cluster, [&](int rank) {
      EXPECT_NCCL(
          ncclCommSplit(cluster.comm(rank), 0, -rank, &made[static_cast<size_t>(rank)], nullptr));
    }));
    expect_works(std::vector<ncclComm_t>(made.rbegin(), made.rend()));
    destroy(made);
  });
}

TEST(Leftovers, OfSplitsThatOneRankRefuses) {
  Cluster cluster(kRanks);
  expect_nothing_left([&] {
    std::vector<ncclComm_t> made(kRanks);
    ncclConfig_t bad = NCCL_CONFIG_INITIALIZER;
    bad.minCTAs = -5;
    EXPECT_EQ(grouped(cluster,
                      [&](int rank) {
                        ncclCommSplit(cluster.comm(rank), 0, rank, &made[static_cast<size_t>(rank)],
                                      rank == 1 ? &bad : nullptr);
                      }),
              ncclInvalidArgument);
    EXPECT_EQ(made, std::vector<ncclComm_t>(kRanks));
  });
}

TEST(Leftovers, OfShrinks) {
  Cluster cluster(kRanks);
  expect_nothing_left([&] {
    std::vector<ncclComm_t> made(2);
    EXPECT_NCCL(ncclGroupStart());
    for (size_t rank = 0; rank < 2; ++rank) {
      int last = kRanks - 1;
      EXPECT_NCCL(ncclCommShrink(cluster.comm(static_cast<int>(rank)), &last, 1, &made[rank],
                                 nullptr, NCCL_SHRINK_DEFAULT));
    }
    EXPECT_NCCL(ncclGroupEnd());
    expect_works(made);
    destroy(made);
  });
}

TEST(Leftovers, OfGrowths) {
  Cluster cluster(2);
  expect_nothing_left([&] {
    std::vector<ncclComm_t> made(3);
    ncclUniqueId id;
    EXPECT_NCCL(ncclCommGetUniqueId(cluster.comm(0), &id));
    EXPECT_NCCL(ncclGroupStart());
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_NCCL(
          ncclCommGrow(cluster.comm(static_cast<int>(rank)), 3, nullptr, -1, &made[rank], nullptr));
    EXPECT_CUDA(cudaSetDevice(2));
    EXPECT_NCCL(ncclCommGrow(nullptr, 3, &id, 2, &made[2], nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    expect_works(made);
    destroy(made);
  });
}

TEST(Leftovers, OfSuspensions) {
  Cluster cluster(kRanks);
  std::vector<ncclComm_t> comms;
  for (int rank = 0; rank < kRanks; ++rank) comms.push_back(cluster.comm(rank));
  expect_works(comms);
  expect_nothing_left([&] {
    EXPECT_NCCL(grouped(cluster, [&](int rank) {
      EXPECT_NCCL(ncclCommSuspend(cluster.comm(rank), NCCL_SUSPEND_MEM));
    }));
    EXPECT_NCCL(
        grouped(cluster, [&](int rank) { EXPECT_NCCL(ncclCommResume(cluster.comm(rank))); }));
    expect_works(comms);
  });
}

TEST(Leftovers, OfWindowsWithPutsAndSignals) {
  constexpr size_t kBytes = 8192;
  Cluster cluster(2);
  expect_nothing_left([&] {
    void* memory[2];
    ncclWindow_t windows[2];
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(&memory[rank], kBytes));
    }
    EXPECT_NCCL(grouped(cluster, [&](int rank) {
      EXPECT_NCCL(ncclCommWindowRegister(cluster.comm(rank), memory[rank], kBytes, &windows[rank],
                                         NCCL_WIN_COLL_SYMMETRIC));
    }));
    ncclWaitSignalDesc_t one{1, 0, 0, 0};
    EXPECT_NCCL(ncclWaitSignal(1, &one, cluster.comm(1), cluster.stream(1)));
    EXPECT_NCCL(ncclPutSignal(memory[0], 100, ncclInt, 1, windows[0], 4096, 0, 0, 0,
                              cluster.comm(0), cluster.stream(0)));
    cluster.synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(rank), windows[rank]));
      EXPECT_NCCL(ncclMemFree(memory[rank]));
    }
  });
}

TEST(Leftovers, OfWindowsThatOneRankCannotHave) {
  Cluster cluster(2);
  void* memory[2];
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_NCCL(ncclMemAlloc(&memory[rank], 8192));
  }
  expect_nothing_left([&] {
    ncclWindow_t windows[2] = {};
    EXPECT_EQ(grouped(cluster,
                      [&](int rank) {
                        ncclCommWindowRegister(cluster.comm(rank),
                                               rank == 0 ? memory[rank] : nullptr, 8192,
                                               &windows[rank], NCCL_WIN_COLL_SYMMETRIC);
                      }),
              ncclInvalidArgument);
  });
  for (void* one : memory) EXPECT_NCCL(ncclMemFree(one));
}

TEST(Leftovers, OfRegistrations) {
  Cluster cluster(1);
  expect_nothing_left([&] {
    DeviceBuffer buffer(0, 1 << 20);
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(cluster.comm(0), buffer.data(), 1 << 20, &handle));
    EXPECT_NCCL(ncclCommDeregister(cluster.comm(0), handle));
  });
}

}  // namespace
}  // namespace niccolite::test
