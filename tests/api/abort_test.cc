// ncclCommAbort by another thread, at any moment of an init, a split, a shrink or a growth that
// others do not come to: the call ends with an error, nothing is made, and nothing is left of it.
// And at any moment of the destruction of the communicator.
#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "tests/api/usage.h"
#include "tests/api/working.h"

namespace niccolite::test {
namespace {

constexpr int kRounds = 200;

class Abort : public testing::Test {
 protected:
  // From before the call has begun until it waits for others.
  void pass_a_moment() {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, 2000)(random_)));
  }

  /// `call` on rank 0 of `nranks`, on a thread of its own, until it is aborted.
  template <typename Call>
  void expect_end_of(int nranks, const Call& call) {
    expect_nothing_left<kRounds>([&] {
      std::vector<ncclComm_t> comms(static_cast<size_t>(nranks));
      ASSERT_NCCL(ncclCommInitAll(comms.data(), nranks, nullptr));
      ncclComm_t made = nullptr;
      ncclResult_t result = ncclSuccess;
      std::thread caller([&] { result = call(comms[0], &made); });
      pass_a_moment();
      EXPECT_NCCL(ncclCommAbort(comms[0]));
      caller.join();
      EXPECT_NE(result, ncclSuccess);
      EXPECT_EQ(made, nullptr);
      for (int rank = 1; rank < nranks; ++rank)
        EXPECT_NCCL(ncclCommAbort(comms[static_cast<size_t>(rank)]));
    });
  }

  /// `joining` of two ranks begin an init, and are aborted one after the other.
  void expect_end_of_init(int joining) {
    expect_nothing_left<kRounds>([&] {
      ncclUniqueId id;
      ASSERT_NCCL(ncclGetUniqueId(&id));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      std::vector<ncclComm_t> comms(static_cast<size_t>(joining));
      for (int rank = 0; rank < joining; ++rank) {
        ASSERT_CUDA(cudaSetDevice(rank));
        ASSERT_EQ(ncclCommInitRankConfig(&comms[static_cast<size_t>(rank)], 2, id, rank, &config),
                  ncclInProgress);
      }
      pass_a_moment();
      for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
    });
  }

 private:
  std::mt19937 random_{1};
};

// One of the two calls ends the communicator, and the other one may find it gone.
TEST_F(Abort, MayComeAtAnyMomentOfADestruction) {
  const auto has_ended = testing::AnyOf(ncclSuccess, ncclInvalidArgument);
  expect_nothing_left<kRounds>([&] {
    std::vector<ncclComm_t> comms(2);
    ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
    ncclResult_t destroyed = ncclSuccess;
    std::thread caller([&] { destroyed = ncclCommDestroy(comms[0]); });
    pass_a_moment();
    EXPECT_THAT(ncclCommAbort(comms[0]), has_ended);
    caller.join();
    EXPECT_THAT(destroyed, testing::AnyOf(has_ended, ncclInvalidUsage));  // which was overtaken
    EXPECT_NCCL(ncclCommAbort(comms[1]));
  });
}

TEST_F(Abort, EndsAnInitThatWaitsForOthers) { expect_end_of_init(1); }

TEST_F(Abort, EndsAnInitThatAllHaveComeTo) { expect_end_of_init(2); }

TEST_F(Abort, EndsASplit) {
  expect_end_of(2, [](ncclComm_t comm, ncclComm_t* made) {
    return ncclCommSplit(comm, 0, 0, made, nullptr);
  });
}

TEST_F(Abort, EndsAShrink) {
  for (const int flags : {NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT})
    expect_end_of(3, [flags](ncclComm_t comm, ncclComm_t* made) {
      int last = 2;
      return ncclCommShrink(comm, &last, 1, made, nullptr, flags);
    });
}

TEST_F(Abort, EndsAGrowthThatNobodyInvitesTo) {
  expect_end_of(2, [](ncclComm_t comm, ncclComm_t* made) {
    return ncclCommGrow(comm, 3, nullptr, -1, made, nullptr);
  });
}

TEST_F(Abort, EndsAGrowthWhoseNewcomerDoesNotCome) {
  expect_end_of(2, [](ncclComm_t comm, ncclComm_t* made) {
    ncclUniqueId id;
    const ncclResult_t invited = ncclCommGetUniqueId(comm, &id);
    return invited == ncclSuccess ? ncclCommGrow(comm, 3, &id, -1, made, nullptr) : invited;
  });
}

}  // namespace
}  // namespace niccolite::test
