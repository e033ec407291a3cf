// ncclCommShrink, ncclCommRevoke, ncclCommGetUniqueId and ncclCommGrow, ncclCommInitRankScalable,
// for ranks of one process.
#include <gmock/gmock.h>

#include <future>

#include "tests/api/working.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

/// Every rank but `excluded` calls, each on a thread of its own, with the list `list_of(rank)`.
std::vector<ncclComm_t> shrink(const Cluster& cluster, int excluded,
                               const std::vector<std::vector<int>>& lists, int flags,
                               ncclResult_t expected) {
  std::vector<ncclComm_t> made(static_cast<size_t>(cluster.nranks()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    if (rank == excluded) continue;
    threads.emplace_back([&, rank] {
      std::vector<int> list = lists[static_cast<size_t>(rank) % lists.size()];
      EXPECT_EQ(ncclCommShrink(cluster.comm(rank), list.data(), static_cast<int>(list.size()),
                               &made[static_cast<size_t>(rank)], nullptr, flags),
                expected)
          << ncclGetLastError(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return made;
}

TEST(Shrink, KeepsTheOrderOfThoseWhoStay) {
  Cluster cluster(4);
  const auto made = shrink(cluster, 1, {{1}}, NCCL_SHRINK_DEFAULT, ncclSuccess);
  EXPECT_EQ(made[1], nullptr);
  expect_works({made[0], made[2], made[3]});
  const auto again = shrink(cluster, 1, {{1}}, NCCL_SHRINK_DEFAULT, ncclSuccess);
  expect_works({again[0], again[2], again[3]});
  expect_works({cluster.comm(0), cluster.comm(1), cluster.comm(2), cluster.comm(3)});
  for (const auto& comms : {made, again})
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Shrink, EndsRunningWorkWhenAsked) {
  Cluster cluster(3);
  DeviceBuffer buffers[] = {DeviceBuffer(0, 4000), DeviceBuffer(1, 4000)};
  for (int rank = 0; rank < 2; ++rank)  // rank 2 never calls
    EXPECT_NCCL(ncclAllReduce(buffers[rank].data(), buffers[rank].data(), 1000, ncclFloat, ncclSum,
                              cluster.comm(rank), cluster.stream(rank)));
  const auto made = shrink(cluster, 2, {{2}}, NCCL_SHRINK_ABORT, ncclSuccess);
  expect_works({made[0], made[1]});
  EXPECT_EQ(ncclAllReduce(buffers[0].data(), buffers[0].data(), 1000, ncclFloat, ncclSum,
                          cluster.comm(0), cluster.stream(0)),
            ncclInvalidUsage);
  for (ncclComm_t comm : made) EXPECT_NCCL(ncclCommDestroy(comm));
}

// A rank whose operations do not end tells those who would wait for it; then all can shrink.
TEST(Shrink, TellsAllOfARankWhoseDeviceStaysBusy) {
  Cluster cluster(3);
  std::promise<void> release;
  std::shared_future<void> released = release.get_future();
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaLaunchHostFunc(
      cluster.stream(0), [](void* until) { static_cast<std::shared_future<void>*>(until)->wait(); },
      &released));
  DeviceBuffer buffers[] = {DeviceBuffer(0, 4000), DeviceBuffer(1, 4000)};
  for (int rank = 0; rank < 2; ++rank)  // rank 2 never calls
    EXPECT_NCCL(ncclAllReduce(buffers[rank].data(), buffers[rank].data(), 1000, ncclFloat, ncclSum,
                              cluster.comm(rank), cluster.stream(rank)));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      int last = 2;
      ncclComm_t made = nullptr;
      EXPECT_EQ(ncclCommShrink(cluster.comm(rank), &last, 1, &made, nullptr, NCCL_SHRINK_ABORT),
                ncclInternalError);
      const std::string said = ncclGetLastError(nullptr);
      EXPECT_THAT(said, HasSubstr("device 0 is still busy")) << rank;
      EXPECT_EQ(made, nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  release.set_value();
  const auto made = shrink(cluster, 2, {{2}}, NCCL_SHRINK_ABORT, ncclSuccess);
  expect_works({made[0], made[1]});
  for (ncclComm_t comm : made) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Shrink, WithListsThatDifferFailsOnAllAndCanBeRepeated) {
  Cluster cluster(4);
  const auto none =
      shrink(cluster, 3, {{3}, {3, 2}, {3}}, NCCL_SHRINK_DEFAULT, ncclInvalidArgument);
  EXPECT_THAT(none, testing::Each(nullptr));
  const auto made = shrink(cluster, 3, {{3}}, NCCL_SHRINK_DEFAULT, ncclSuccess);
  expect_works({made[0], made[1], made[2]});
  for (ncclComm_t comm : made) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Shrink, RefusesBadArguments) {
  Cluster cluster(2);
  ncclComm_t made = nullptr;
  int list[] = {1, 0}, far[] = {2};
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), nullptr, 1, &made, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), list, 0, &made, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), list, 2, &made, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(list[0], 0);  // sorted in place
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), far, 1, &made, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), list + 1, 1, nullptr, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(cluster.comm(0), list + 1, 1, &made, nullptr, 8), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(nullptr, list + 1, 1, &made, nullptr, 0), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommShrink(cluster.comm(0), list + 1, 1, &made, nullptr, 0));  // alone
  expect_works({made});
  EXPECT_NCCL(ncclCommDestroy(made));
}

// What one rank passes wrongly, all that shrink hear; then they can do it right.
TEST(Shrink, TellsAllOfTheBadArgumentsOfOne) {
  constexpr int kRanks = 4;
  Cluster cluster(kRanks);
  struct Case {
    std::vector<int> list;  // of rank 0; the others leave out rank 3
    const char* message;
  };
  for (const Case& c : {Case{{0, 3}, "has rank 0, which is the caller"},
                        Case{{3, 4}, "has rank 4, the communicator has 4 ranks"}}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank + 1 < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        std::vector<int> list = rank == 0 ? c.list : std::vector<int>{3};
        ncclComm_t made = nullptr;
        EXPECT_EQ(ncclCommShrink(cluster.comm(rank), list.data(), static_cast<int>(list.size()),
                                 &made, nullptr, 0),
                  ncclInvalidArgument);
        const std::string said = ncclGetLastError(nullptr);
        EXPECT_THAT(said, HasSubstr(c.message)) << rank;
        EXPECT_EQ(made, nullptr);
      });
    for (std::thread& thread : threads) thread.join();
  }
  const auto made = shrink(cluster, 3, {{3}}, NCCL_SHRINK_DEFAULT, ncclSuccess);
  expect_works({made[0], made[1], made[2]});
  for (ncclComm_t comm : made) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Revoke, RefusesOperationsAndAllowsChildren) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 4000);
  EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), 1000, ncclFloat, ncclSum, cluster.comm(0),
                            cluster.stream(0)));  // its peer never calls
  EXPECT_EQ(ncclCommRevoke(cluster.comm(0), 1), ncclInvalidArgument);
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommRevoke(cluster.comm(rank), 0));
  EXPECT_EQ(ncclCommRevoke(cluster.comm(0), 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommFinalize(cluster.comm(0)), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommRevoke(nullptr, 0));
  EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 1000, ncclFloat, ncclSum, cluster.comm(0),
                          cluster.stream(0)),
            ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("revoked"));
  ncclComm_t children[2];
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_NCCL(ncclCommSplit(cluster.comm(rank), 0, -rank, &children[rank], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  expect_works({children[1], children[0]});
  for (ncclComm_t comm : children) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Grow, AddsNewcomersBehindTheMembers) {
  Cluster cluster(2);
  ncclUniqueId id;
  ASSERT_NCCL(ncclCommGetUniqueId(cluster.comm(1), &id));
  std::vector<ncclComm_t> grown(4);
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclCommGrow(cluster.comm(0), 4, nullptr, -1, &grown[0], nullptr));
  ASSERT_NCCL(ncclCommGrow(cluster.comm(1), 4, &id, -1, &grown[1], nullptr));
  for (int rank = 2; rank < 4; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(ncclCommGrow(nullptr, 4, &id, rank, &grown[static_cast<size_t>(rank)], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  expect_works(grown);
  expect_works({cluster.comm(0), cluster.comm(1)});
  for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Grow, WithAnIdThatWasUsedIsRefusedAtOnce) {
  Cluster cluster(2);
  ncclUniqueId id;
  ASSERT_NCCL(ncclCommGetUniqueId(cluster.comm(0), &id));
  std::vector<ncclComm_t> grown(3);
  ASSERT_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < 2; ++rank)
    ASSERT_NCCL(
        ncclCommGrow(cluster.comm(static_cast<int>(rank)), 3, &id, -1, &grown[rank], nullptr));
  ASSERT_CUDA(cudaSetDevice(2));
  ASSERT_NCCL(ncclCommGrow(nullptr, 3, &id, 2, &grown[2], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  ncclComm_t again = nullptr;
  EXPECT_EQ(ncclCommGrow(cluster.comm(0), 3, &id, -1, &again, nullptr), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("has been used before"));
  EXPECT_EQ(again, nullptr);
  expect_works(grown);
  for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
}

// Those who wait for a rank whose arguments are wrong hear of it, and the next growth is none of
// that one's business.
TEST(Grow, TellsAllOfARanksBadArguments) {
  Cluster cluster(2);
  ncclConfig_t bad = NCCL_CONFIG_INITIALIZER;
  bad.blocking = 7;
  for (const int culprit : {0, 1, 2, 3}) {  // 3: nobody
    ncclUniqueId id;
    ASSERT_NCCL(ncclCommGetUniqueId(cluster.comm(0), &id));
    std::vector<ncclComm_t> grown(3);
    std::vector<ncclResult_t> results(3);
    std::vector<std::string> words(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        const auto at = static_cast<size_t>(rank);
        EXPECT_CUDA(cudaSetDevice(rank));
        results[at] =
            ncclCommGrow(rank < 2 ? cluster.comm(rank) : nullptr, 3, &id, rank < 2 ? -1 : rank,
                         &grown[at], rank == culprit ? &bad : nullptr);
        words[at] = ncclGetLastError(nullptr);
      });
    for (std::thread& thread : threads) thread.join();
    if (culprit == 3) {
      for (const ncclResult_t result : results) EXPECT_NCCL(result);
      expect_works(grown);
      for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
      continue;
    }
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_NE(results[rank], ncclSuccess);
      EXPECT_EQ(grown[rank], nullptr);
      EXPECT_THAT(words[rank], HasSubstr("Invalid config blocking attribute value 7"));
    }
  }
}

TEST(Grow, EndsWhenTheParentIsAborted) {
  Cluster cluster(2);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  // Nobody invites.
  ASSERT_EQ(ncclCommGrow(cluster.comm(0), 3, nullptr, -1, &made, &config), ncclInProgress);
  EXPECT_NCCL(ncclCommAbort(std::exchange(cluster.comms()[0], nullptr)));
  EXPECT_EQ(settled(made), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("was aborted"));
  EXPECT_NCCL(ncclCommAbort(made));
}

TEST(Grow, RefusesBadArguments) {
  Cluster cluster(2);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t made = nullptr;
  EXPECT_EQ(ncclCommGrow(cluster.comm(0), 2, nullptr, -1, &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(cluster.comm(0), 0, nullptr, -1, &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(cluster.comm(0), 3, nullptr, 0, &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(cluster.comm(0), 3, nullptr, -1, nullptr, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(nullptr, 3, nullptr, 2, &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(nullptr, 3, &id, 3, &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetUniqueId(cluster.comm(0), nullptr), ncclInvalidArgument);
}

TEST(Scalable, JoinsByTheFirstOfSeveralIds) {
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  std::vector<ncclComm_t> comms(3);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(
        ncclCommInitRankScalable(&comms[static_cast<size_t>(rank)], 3, rank, 2, ids, nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  expect_works(comms);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  ncclComm_t none = nullptr;
  EXPECT_EQ(ncclCommInitRankScalable(&none, 1, 0, 2, ids, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&none, 1, 0, 0, ids, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&none, 1, 0, 1, nullptr, nullptr), ncclInvalidArgument);
}

}  // namespace
}  // namespace niccolite::test
