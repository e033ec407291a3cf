// The checker refuses every broken copy of every algorithm, and names rank, channel, worker and
// instruction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "algorithms/registry.h"
#include "schedule/check.h"
#include "tests/algorithms/mutations.h"

namespace niccolite::algorithms {
namespace {

using schedule::Schedule;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int kRoot = 1;  // neither the first rank nor, from three on, the last

/// Two machines, the second with more ranks where it can have them.
Schedule build(const Algorithm& algorithm, int nranks) {
  Options options{.root = kRoot};
  for (int rank = 0; rank < nranks; ++rank) options.machines.push_back(rank < nranks / 2 ? 0 : 1);
  return algorithm.build(nranks, options).take();
}

struct Case {
  const Mutation* mutation;
  const Algorithm* algorithm;
  int nranks;
};
std::string name_of(const Case& c) {
  return fmt::format("{}_{}_{}_{}", c.mutation->name, schedule::name_of(c.algorithm->collective),
                     c.algorithm->name, c.nranks);
}
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

std::vector<const Mutation*> mutations() {
  std::vector<const Mutation*> result;
  for (const Mutation& mutation : mutations_of_moves()) result.push_back(&mutation);
  for (const Mutation& mutation : mutations_of_reductions()) result.push_back(&mutation);
  return result;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Mutation* mutation : mutations())
    for (const Algorithm& algorithm : all())
      for (const int nranks : {2, 3, 4, 8})
        if (mutation->applies(build(algorithm, nranks)))
          result.push_back({mutation, &algorithm, nranks});
  return result;
}

class EveryMutant : public testing::TestWithParam<Case> {};

TEST_P(EveryMutant, IsRefusedWithItsPlaceAndCause) {
  Schedule schedule = build(*GetParam().algorithm, GetParam().nranks);
  const auto expected = GetParam().mutation->apply(schedule);
  ASSERT_TRUE(expected.has_value()) << "nothing was broken: `applies` should say so";
  const Status status = schedule::check(schedule);
  ASSERT_FALSE(status.is_ok()) << "the checker accepts it";
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  for (const std::string& text : *expected) EXPECT_THAT(status.message(), HasSubstr(text));
  // What nobody writes has no instruction, and neither has the schedule as a whole.
  const bool has_place =
      status.message().find("no instruction of any worker") == std::string::npos &&
      status.message().find("the root is") == std::string::npos &&
      status.message().find("the schedule for") == std::string::npos;
  if (has_place) {
    EXPECT_THAT(status.message(),
                ContainsRegex("rank [0-9]+ channel 0 worker [0-9]+ instruction [0-9]+"));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMutant, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return name_of(test.param);
                         });

TEST(Mutations, EachCollectiveHasAtLeastTen) {
  for (const Algorithm& algorithm : all()) {
    int count = 0;
    for (const Mutation* mutation : mutations())
      if (mutation->applies(build(algorithm, 4))) ++count;
    EXPECT_GE(count, 10) << schedule::name_of(algorithm.collective) << " " << algorithm.name;
  }
}

}  // namespace
}  // namespace niccolite::algorithms
