// Rings other than the one in rank order, and several at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "algorithms/all_reduce.h"
#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Connection;
using schedule::Schedule;

TEST(Rings, AnyOrderIsRight) {
  std::mt19937 random(20240607);
  for (const int n : {2, 3, 5, 8, 17}) {
    std::vector<int> ring(static_cast<size_t>(n));
    std::iota(ring.begin(), ring.end(), 0);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(ring.begin(), ring.end(), random);
      SCOPED_TRACE(testing::PrintToString(ring));
      const Result<Schedule> schedule = all_reduce_ring(n, {.rings = {ring}});
      ASSERT_TRUE(schedule.is_ok()) << schedule.status().message();
      const Status status = check(schedule.value());
      EXPECT_TRUE(status.is_ok()) << status.message();
      for (const Connection& c : schedule.value().connections) {
        const auto sender = std::find(ring.begin(), ring.end(), c.sender) - ring.begin();
        EXPECT_EQ(c.receiver, ring[static_cast<size_t>(sender + 1) % ring.size()]);
      }
    }
  }
}

TEST(Rings, EachIsAChannelOfItsOwn) {
  const Result<Schedule> schedule =
      all_reduce_ring(4, {.rings = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}}});
  ASSERT_TRUE(schedule.is_ok());
  for (const auto& channels : schedule.value().ranks) EXPECT_EQ(channels.size(), 3u);
  EXPECT_EQ(schedule.value().connections.size(), 12u);
  EXPECT_TRUE(check(schedule.value()).is_ok());
}

TEST(Rings, AFaultInALaterChannelIsFoundThere) {
  Schedule schedule = all_reduce_ring(3, {.rings = {{0, 1, 2}, {0, 2, 1}}}).take();
  schedule.ranks[1][1].lanes[0].instructions[2].finish = false;
  EXPECT_EQ(
      check(schedule).message(),
      "rank 0 channel 1 lane 0 instruction 3 leaves output block 2 unfinished (last folded by "
      "rank 1 channel 1 lane 0 instruction 2)");
}

TEST(Rings, ThatAreNoPermutationsAreRefused) {
  for (const std::vector<int>& ring :
       std::vector<std::vector<int>>{{0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0, 1, 2, 0}}) {
    const Result<Schedule> schedule = all_reduce_ring(3, {.rings = {ring}});
    ASSERT_FALSE(schedule.is_ok()) << testing::PrintToString(ring);
    EXPECT_EQ(schedule.status().code(), Code::InvalidArgument);
  }
}

}  // namespace
}  // namespace niccolite::algorithms
