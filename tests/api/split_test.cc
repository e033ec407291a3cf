// ncclCommSplit, ranks of one process: who is in which child and in which order, that children and
// parent work side by side, in every order of their ends, and what wrong arguments come to.
#include <gmock/gmock.h>

#include <functional>
#include <numeric>

#include "tests/api/working.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

/// Splits all ranks of `parents` in one group.
std::vector<ncclComm_t> split(const std::vector<ncclComm_t>& parents,
                              const std::function<int(int)>& color,
                              const std::function<int(int)>& key, ncclConfig_t* config = nullptr) {
  std::vector<ncclComm_t> children(parents.size(), reinterpret_cast<ncclComm_t>(1));
  EXPECT_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < parents.size(); ++rank)
    EXPECT_NCCL(ncclCommSplit(parents[rank], color(static_cast<int>(rank)),
                              key(static_cast<int>(rank)), &children[rank], config));
  const ncclResult_t ended = ncclGroupEnd();
  EXPECT_TRUE(ended == ncclSuccess || ended == ncclInProgress) << ncclGetLastError(nullptr);
  for (ncclComm_t parent : parents) EXPECT_EQ(settled(parent), ncclSuccess);
  return children;
}

std::vector<ncclComm_t> comms_of(const Cluster& cluster) {
  std::vector<ncclComm_t> comms;
  for (int rank = 0; rank < cluster.nranks(); ++rank) comms.push_back(cluster.comm(rank));
  return comms;
}

void destroy(const std::vector<ncclComm_t>& comms) {
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

int zero(int) { return 0; }
int same(int rank) { return rank; }

TEST(Split, GivesEachColorACommunicatorInTheOrderOfTheKeys) {
  Cluster cluster(5);
  const auto children = split(
      comms_of(cluster), [](int rank) { return rank % 2 * 7; }, [](int rank) { return -rank; });
  expect_works({children[4], children[2], children[0]});
  expect_works({children[3], children[1]});
  expect_works(comms_of(cluster));
  destroy(children);
  expect_works(comms_of(cluster));
}

TEST(Split, BreaksTiesOfKeysByTheOldRank) {
  Cluster cluster(4);
  const auto children = split(comms_of(cluster), zero, [](int rank) { return rank == 0 ? 1 : 0; });
  expect_works({children[1], children[2], children[3], children[0]});
  destroy(children);
}

TEST(Split, GivesNothingToRanksWithoutColor) {
  Cluster cluster(4);
  const auto children = split(
      comms_of(cluster), [](int rank) { return rank == 2 ? NCCL_SPLIT_NOCOLOR : 1; }, same);
  EXPECT_EQ(children[2], nullptr);
  expect_works({children[0], children[1], children[3]});
  destroy({children[0], children[1], children[3]});
  const auto none = split(
      comms_of(cluster), [](int) { return NCCL_SPLIT_NOCOLOR; }, same);
  EXPECT_THAT(none, testing::Each(nullptr));
}

TEST(Split, MakesCommunicatorsOfOneRank) {
  Cluster cluster(3);
  const auto children = split(comms_of(cluster), same, zero);
  for (ncclComm_t child : children) expect_works({child});
  // And from one: the same again.
  const auto grandchild = split({children[1]}, zero, zero);
  expect_works(grandchild);
  destroy(children);
  expect_works(grandchild);
  destroy(grandchild);
}

TEST(Split, OfSplitsWorksWhicheverEndsFirst) {
  std::vector<ncclComm_t> grandchildren;
  std::vector<ncclComm_t> rest;
  {
    Cluster cluster(6);
    const auto children = split(
        comms_of(cluster), [](int rank) { return rank / 4; }, same);
    rest = {children[4], children[5]};
    const std::vector<ncclComm_t> first(children.begin(), children.begin() + 4);
    grandchildren = split(
        first, [](int rank) { return rank % 2; }, [](int rank) { return -rank; });
    expect_works({grandchildren[2], grandchildren[0]});
    destroy(first);
    expect_works({grandchildren[3], grandchildren[1]});
  }  // the first parent ends
  expect_works({grandchildren[2], grandchildren[0]});
  expect_works(rest);
  // And a child of what has no parent any more.
  const auto again =
      split({grandchildren[2], grandchildren[0]}, zero, [](int rank) { return -rank; });
  destroy({grandchildren[2], grandchildren[0]});
  expect_works({again[1], again[0]});
  destroy(again);
  destroy({grandchildren[1], grandchildren[3]});
  destroy(rest);
}

TEST(Split, SeveralOfOneCommunicatorInOneGroup) {
  Cluster cluster(4);
  std::vector<ncclComm_t> halves(4), pairs(4), whole(4);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 4; ++rank) {
    const auto i = static_cast<size_t>(rank);
    ASSERT_NCCL(ncclCommSplit(cluster.comm(rank), rank / 2, rank, &halves[i], nullptr));
    ASSERT_NCCL(ncclCommSplit(cluster.comm(rank), rank % 2, rank, &pairs[i], nullptr));
    ASSERT_NCCL(ncclCommSplit(cluster.comm(rank), 0, -rank, &whole[i], nullptr));
    EXPECT_EQ(whole[i], nullptr);  // until the end of the group
  }
  ASSERT_NCCL(ncclGroupEnd());
  expect_works({halves[0], halves[1]});
  expect_works({halves[2], halves[3]});
  expect_works({pairs[0], pairs[2]});
  expect_works({pairs[1], pairs[3]});
  expect_works({whole[3], whole[2], whole[1], whole[0]});
  destroy(halves), destroy(pairs), destroy(whole);
}

TEST(Split, OfSeveralCommunicatorsAtOnceFromManyThreads) {
  constexpr int kRanks = 4, kRounds = 20;
  Cluster first(kRanks), second(kRanks);
  std::vector<std::thread> threads;
  for (const Cluster* cluster : {&first, &second})
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([cluster, rank] {
        EXPECT_CUDA(cudaSetDevice(rank));
        for (int round = 0; round < kRounds; ++round) {
          ncclComm_t child = nullptr;
          ASSERT_NCCL(ncclCommSplit(cluster->comm(rank), rank % 2, -rank, &child, nullptr));
          RankAtWork work(child, 2), of_parent(cluster->comm(rank), kRanks);
          ASSERT_NCCL(of_parent.start());
          ASSERT_NCCL(work.start());
          work.synchronize();
          of_parent.synchronize();
          work.check({rank % 2 + 2, rank % 2});
          of_parent.check({0, 1, 2, 3});
          ASSERT_NCCL(ncclCommDestroy(child));
        }
      });
  for (std::thread& thread : threads) thread.join();
}

TEST(Split, OfNonblockingCommunicatorsIsDoneInTheBackground) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::vector<ncclComm_t> parents(3), children(3, reinterpret_cast<ncclComm_t>(1));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_EQ(ncclCommInitRankConfig(&parents[static_cast<size_t>(rank)], 3, id, rank, &config),
              ncclInProgress);
  }
  for (ncclComm_t parent : parents) ASSERT_EQ(settled(parent), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    const auto i = static_cast<size_t>(rank);
    ASSERT_EQ(ncclCommSplit(parents[i], 0, -rank, &children[i], nullptr), ncclInProgress);
    EXPECT_EQ(children[i], nullptr);  // not before the last rank has called
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(parents[i], &state));
    EXPECT_EQ(state, ncclInProgress);
  }
  ASSERT_EQ(ncclCommSplit(parents[2], 0, -2, &children[2], nullptr), ncclInProgress);
  for (ncclComm_t parent : parents) ASSERT_EQ(settled(parent), ncclSuccess);
  expect_works({children[2], children[1], children[0]});  // nonblocking, as the parents
  // A config that says so makes them blocking.
  config.blocking = 1;
  const auto blocking = split(parents, zero, same, &config);
  ASSERT_NCCL(ncclGroupStart());
  for (ncclComm_t comm : blocking) EXPECT_NCCL(ncclCommFinalize(comm));
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  destroy(blocking), destroy(children), destroy(parents);
}

TEST(Split, OfAnAbortedCommunicatorEndsOnAllRanks) {
  Cluster cluster(3);
  std::vector<ncclComm_t> parents = split(comms_of(cluster), zero, same);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      ncclComm_t child = nullptr;
      EXPECT_NE(ncclCommSplit(parents[rank], 0, 0, &child, nullptr), ncclSuccess);
      EXPECT_EQ(child, nullptr);
    });
  EXPECT_NCCL(ncclCommAbort(parents[2]));  // instead of splitting
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommAbort(parents[rank]));
  expect_works(comms_of(cluster));
}

TEST(Split, RefusesBadArguments) {
  Cluster cluster(2);
  ncclComm_t child = reinterpret_cast<ncclComm_t>(1);
  EXPECT_EQ(ncclCommSplit(nullptr, 0, 0, &child, nullptr), ncclInvalidArgument);
  int foreign = 0;
  EXPECT_EQ(ncclCommSplit(reinterpret_cast<ncclComm_t>(&foreign), 0, 0, &child, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclCommSplit(cluster.comm(0), 0, 0, nullptr, nullptr), ncclInvalidArgument);
  const auto children = split(comms_of(cluster), zero, same);
  destroy(children);
  EXPECT_EQ(ncclCommSplit(children[0], 0, 0, &child, nullptr), ncclInvalidArgument);  // stale
  expect_works(comms_of(cluster));
}

TEST(Split, WithABadConfigOfOneRankFailsOnAllAndLeavesTheParentAlone) {
  Cluster cluster(3);
  ncclConfig_t bad = NCCL_CONFIG_INITIALIZER;
  bad.maxCTAs = -3;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      ncclComm_t child = nullptr;
      EXPECT_EQ(ncclCommSplit(cluster.comm(rank), rank, 0, &child, rank == 1 ? &bad : nullptr),
                ncclInvalidArgument);
      EXPECT_EQ(child, nullptr);
      if (rank != 1) {
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("maxCTAs"));
      }
    });
  for (std::thread& thread : threads) thread.join();
  expect_works(comms_of(cluster));
  const auto children = split(comms_of(cluster), zero, same);
  expect_works(children);
  destroy(children);
}

}  // namespace
}  // namespace niccolite::test
