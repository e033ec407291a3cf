// The checker accepts every algorithm of the registry, for every number of ranks of interest.
#include <gtest/gtest.h>

#include "algorithms/registry.h"
#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Schedule;

std::vector<int> rank_counts() {
  std::vector<int> counts{48, 64, 128};
  for (int n = 1; n <= 33; ++n) counts.push_back(n);
  return counts;
}

struct Case {
  const Algorithm* algorithm;
  int nranks;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.algorithm->name << " " << c.nranks; }

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Algorithm& algorithm : all())
    for (const int nranks : rank_counts())
      if (nranks >= algorithm.min_ranks && nranks <= algorithm.max_ranks)
        result.push_back({&algorithm, nranks});
  return result;
}

class EveryAlgorithm : public testing::TestWithParam<Case> {};

TEST_P(EveryAlgorithm, IsRightFreeOfDeadlockAndOfRacesAtDepthTwo) {
  const Result<Schedule> built = GetParam().algorithm->build(GetParam().nranks, {});
  ASSERT_TRUE(built.is_ok()) << built.status().message();
  const Status status = check(built.value(), {.depth = 2});
  EXPECT_TRUE(status.is_ok()) << status.message();
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryAlgorithm, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return std::string(test.param.algorithm->name) + "_" +
                                  std::to_string(test.param.nranks);
                         });

TEST(Registry, FindsEachAlgorithmByNameAndNoOther) {
  ASSERT_EQ(all().size(), 4u);
  for (const Algorithm& algorithm : all())
    EXPECT_EQ(find(algorithm.collective, algorithm.name), &algorithm);
  EXPECT_EQ(find(schedule::Collective::AllReduce, "rings"), nullptr);
  EXPECT_EQ(find(schedule::Collective::AllReduce, ""), nullptr);
}

TEST(Registry, SchedulesCarryTheNameOfTheirAlgorithm) {
  for (const Algorithm& algorithm : all())
    for (const int nranks : {1, 2, 5})
      EXPECT_EQ(algorithm.build(nranks, {})->algorithm, algorithm.name);
}

TEST(Registry, RefusesRankCountsOutsideTheRange) {
  for (const Algorithm& algorithm : all()) {
    for (const int nranks : {-1, algorithm.min_ranks - 1, algorithm.max_ranks + 1}) {
      const Result<Schedule> built = algorithm.build(nranks, {});
      ASSERT_FALSE(built.is_ok()) << algorithm.name << " " << nranks;
      EXPECT_EQ(built.status().code(), Code::InvalidArgument);
    }
    for (const int rank : {-1, 4})
      EXPECT_FALSE(algorithm.build(4, {.only_rank = rank}).is_ok()) << algorithm.name;
  }
}

}  // namespace
}  // namespace niccolite::algorithms
