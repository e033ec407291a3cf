// Every registered algorithm survives the way through a file.
#include <gtest/gtest.h>

#include "algorithms/point_to_point.h"
#include "algorithms/registry.h"
#include "schedule/file.h"

namespace niccolite::algorithms {
namespace {

using schedule::from_file;
using schedule::Schedule;
using schedule::to_file;

void expect_same_after_a_file(const Schedule& schedule) {
  const std::string text = to_file(schedule);
  const Result<Schedule> read = from_file(text);
  ASSERT_TRUE(read.is_ok()) << read.status().message() << "\n" << text;
  EXPECT_TRUE(read.value() == schedule) << text;
}

TEST(ScheduleFile, HoldsEveryAlgorithm) {
  for (const Algorithm& algorithm : all()) {
    for (const int nranks : {1, 2, 3, 4, 5, 7, 8, 12, 16, 33}) {
      if (nranks < algorithm.min_ranks || nranks > algorithm.max_ranks) continue;
      SCOPED_TRACE(
          fmt::format("{} {} {}", schedule::name_of(algorithm.collective), algorithm.name, nranks));
      const int root = schedule::has_root(algorithm.collective) ? nranks - 1 : 0;
      const Result<Schedule> built = algorithm.build(nranks, {.root = root});
      ASSERT_TRUE(built.is_ok()) << built.status().message();
      expect_same_after_a_file(built.value());
    }
  }
}

TEST(ScheduleFile, HoldsAlgorithmsOfSeveralMachines) {
  const std::vector<int> machines{0, 0, 0, 0, 1, 1, 1, 1};
  for (const Algorithm& algorithm : all()) {
    if (algorithm.min_ranks > 8) continue;
    const Result<Schedule> built = algorithm.build(8, {.machines = machines});
    if (built.is_ok()) expect_same_after_a_file(built.value());
  }
}

TEST(ScheduleFile, HoldsMessages) {
  const std::vector<Envelope> messages{{0, 1}, {1, 2}, {2, 2}, {0, 2}};
  const Result<Schedule> built = point_to_point(3, messages);
  ASSERT_TRUE(built.is_ok()) << built.status().message();
  expect_same_after_a_file(built.value());
}

}  // namespace
}  // namespace niccolite::algorithms
