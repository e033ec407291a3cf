// The checker accepts the lowered plans of every algorithm of the registry.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/point_to_point.h"
#include "lowering/check.h"
#include "planner/form.h"

namespace niccolite::lowering {
namespace {

using planner::Form;
using schedule::Schedule;

struct Case {
  const Form* algorithm;
  int nranks;
};
std::string name_of(const Case& c) {
  return fmt::format("{}_{}_{}", schedule::name_of(c.algorithm->collective), c.algorithm->name,
                     c.nranks);
}
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

/// Where nothing is direct, the plan is the schedule, which schedule::check() proves for all ranks.
constexpr int kMostRanksOfSlots = 16;

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Form& algorithm : planner::forms()) {
    for (int nranks = algorithm.min_ranks; nranks <= std::min(algorithm.max_ranks, 128); ++nranks) {
      if (nranks > 33 && nranks != 64 && nranks != 127 && nranks != 128) continue;
      const Schedule schedule = algorithm.build(nranks, {}).take();
      if (nranks > kMostRanksOfSlots && routes_of(schedule).are_all_slots()) continue;
      result.push_back({&algorithm, nranks});
    }
  }
  return result;
}

/// All up to 4 ranks, beyond that those where an index could go wrong.
std::vector<int> roots(const Form& algorithm, int nranks) {
  if (!schedule::has_root(algorithm.collective) || nranks == 1) return {0};
  if (nranks > 16) return {nranks / 3};
  if (nranks > 4) return {0, nranks / 2, nranks - 1};
  std::vector<int> all(static_cast<size_t>(nranks));
  for (int root = 0; root < nranks; ++root) all[static_cast<size_t>(root)] = root;
  return all;
}

class EveryLoweredPlan : public testing::TestWithParam<Case> {};

TEST_P(EveryLoweredPlan, IsRightFromTheStartOfKernelsToTheirEnds) {
  const auto& [algorithm, nranks] = GetParam();
  for (const int root : roots(*algorithm, nranks)) {
    const Schedule schedule = algorithm->build(nranks, {.root = root}).take();
    const Status status = check_all(schedule, {.depth = 2, .with_aborts = nranks <= 3});
    EXPECT_TRUE(status.is_ok()) << "root " << root << ": " << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryLoweredPlan, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return name_of(test.param);
                         });

TEST(LoweredPlansOfMachines, AreRight) {
  const std::vector<std::vector<int>> layouts{
      {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1}};
  int direct = 0;
  for (const Form& algorithm : planner::forms())
    for (const std::vector<int>& machines : layouts) {
      const int nranks = static_cast<int>(machines.size());
      if (!algorithm.is_for(nranks, machines)) continue;
      const Schedule schedule = algorithm.build(nranks, {.root = 1, .machines = machines}).take();
      direct += !routes_of(schedule, machines).are_all_slots();
      const Status status =
          check_all(schedule, {.depth = 2, .with_aborts = nranks <= 4, .machines = machines});
      EXPECT_TRUE(status.is_ok()) << name_of({&algorithm, nranks}) << ": " << status.message();
    }
  EXPECT_GT(direct, 50);
}

TEST(LoweredMessages, AreRight) {
  for (const int nranks : {1, 2, 3, 5}) {
    std::vector<algorithms::Envelope> all;
    for (int sender = 0; sender < nranks; ++sender)
      for (int receiver = 0; receiver < nranks; ++receiver) all.push_back({sender, receiver});
    const Schedule schedule = algorithms::point_to_point(nranks, all).take();
    const Status status = check_all(schedule, {.depth = 1, .with_aborts = nranks <= 3});
    EXPECT_TRUE(status.is_ok()) << nranks << ": " << status.message();
  }
}

}  // namespace
}  // namespace niccolite::lowering
