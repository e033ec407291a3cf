// Rings other than the one in rank order, and several at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>

#include "algorithms/all_reduce.h"
#include "algorithms/registry.h"
#include "algorithms/ring.h"
#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Connection;
using schedule::Schedule;

std::string name_of(const Algorithm& algorithm) {
  return fmt::format("{}_{}", schedule::name_of(algorithm.collective), algorithm.name);
}

class Rings : public testing::TestWithParam<Algorithm> {
 protected:
  static Result<Schedule> build(int n, const Options& options) {
    return GetParam().build(n, options);
  }
};

TEST_P(Rings, InAnyOrderAndWithAnyRootAreRight) {
  std::mt19937 random(20240607);
  for (const int n : {2, 3, 5, 8, 17}) {
    std::vector<int> ring(static_cast<size_t>(n));
    std::iota(ring.begin(), ring.end(), 0);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(ring.begin(), ring.end(), random);
      SCOPED_TRACE(testing::PrintToString(ring));
      const Result<Schedule> schedule = build(n, {.root = i % n, .rings = {ring}});
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

TEST_P(Rings, AreAChannelEach) {
  const Result<Schedule> schedule =
      build(4, {.root = 2, .rings = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}}});
  ASSERT_TRUE(schedule.is_ok());
  for (const auto& channels : schedule.value().ranks) EXPECT_EQ(channels.size(), 3u);
  const size_t hops = schedule::has_root(GetParam().collective) ? 9 : 12;
  const size_t halves = schedule.value().ranks[0][0].workers.size();
  EXPECT_EQ(schedule.value().connections.size(), hops * halves);
  EXPECT_TRUE(check(schedule.value()).is_ok());
}

TEST(RingFaults, AFaultInALaterChannelIsFoundThere) {
  Schedule schedule = all_reduce_ring(3, {.rings = {{0, 1, 2}, {0, 2, 1}}}).take();
  schedule.ranks[1][1].workers[0].instructions[2].finish = false;
  EXPECT_EQ(
      check(schedule).message(),
      "rank 0 channel 1 worker 0 instruction 3 leaves output block 2 unfinished (last reduced by "
      "rank 1 channel 1 worker 0 instruction 2)");
}

TEST_P(Rings, ThatAreNoPermutationsAreRefused) {
  for (const std::vector<int>& ring :
       std::vector<std::vector<int>>{{0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0, 1, 2, 0}}) {
    const Result<Schedule> schedule = build(3, {.rings = {ring}});
    ASSERT_FALSE(schedule.is_ok()) << testing::PrintToString(ring);
    EXPECT_EQ(schedule.status().code(), Code::InvalidArgument);
  }
}

std::vector<Algorithm> rings() {
  std::vector<Algorithm> result;
  std::copy_if(all().begin(), all().end(), std::back_inserter(result),
               [](const Algorithm& a) { return std::string_view(a.name) == "ring"; });
  return result;
}

INSTANTIATE_TEST_SUITE_P(Registry, Rings, testing::ValuesIn(rings()),
                         [](const testing::TestParamInfo<Algorithm>& test) {
                           return name_of(test.param);
                         });

}  // namespace
}  // namespace niccolite::algorithms
