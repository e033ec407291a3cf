// The checker refuses every broken copy of every algorithm, and names rank, channel, lane and
// instruction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/registry.h"
#include "schedule/check.h"
#include "tests/algorithms/mutations.h"

namespace niccolite::algorithms {
namespace {

using schedule::Schedule;
using testing::ContainsRegex;
using testing::HasSubstr;

struct Case {
  const Mutation* mutation;
  const Algorithm* algorithm;
  int nranks;
};
std::string name_of(const Case& c) {
  return fmt::format("{}_{}_{}", c.mutation->name, c.algorithm->name, c.nranks);
}
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

bool applies(const Mutation& mutation, const Algorithm& algorithm) {
  if (algorithm.collective != schedule::Collective::AllReduce) return false;
  return std::count(mutation.not_for.begin(), mutation.not_for.end(), algorithm.name) == 0;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Mutation& mutation : mutations())
    for (const Algorithm& algorithm : all())
      if (applies(mutation, algorithm))
        for (const int nranks : {2, 3, 4, 8}) result.push_back({&mutation, &algorithm, nranks});
  return result;
}

class EveryMutant : public testing::TestWithParam<Case> {};

TEST_P(EveryMutant, IsRefusedWithItsPlaceAndCause) {
  Schedule schedule = GetParam().algorithm->build(GetParam().nranks, {}).take();
  const auto expected = GetParam().mutation->apply(schedule);
  ASSERT_TRUE(expected.has_value()) << "nothing was broken: list the algorithm in not_for";
  const Status status = schedule::check(schedule);
  ASSERT_FALSE(status.is_ok()) << "the checker accepts it";
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  for (const std::string& text : *expected) EXPECT_THAT(status.message(), HasSubstr(text));
  // What nobody writes has no instruction; everything else has.
  if (status.message().find("no instruction of any lane") == std::string::npos) {
    EXPECT_THAT(status.message(),
                ContainsRegex("rank [0-9]+ channel 0 lane [0-9]+ instruction [0-9]+"));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMutant, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return name_of(test.param);
                         });

TEST(Mutations, ApplyToAllAlgorithmsButThoseListed) {
  for (const Mutation& mutation : mutations()) {
    for (const Algorithm& algorithm : all()) {
      if (algorithm.collective != schedule::Collective::AllReduce) continue;
      Schedule schedule = algorithm.build(4, {}).take();
      EXPECT_EQ(mutation.apply(schedule).has_value(), applies(mutation, algorithm))
          << mutation.name << " " << algorithm.name;
    }
  }
}

}  // namespace
}  // namespace niccolite::algorithms
