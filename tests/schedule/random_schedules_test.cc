// Random right schedules survive a file, and random broken copies are refused with their reason. A
// failure prints its seed: NICCOLITE_RANDOM_SEED=<seed> replays it alone,
// NICCOLITE_RANDOM_PROGRAMS=<n> runs more or fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "schedule/check.h"
#include "schedule/file.h"
#include "schedule/index.h"
#include "tests/schedule/random_schedule.h"

namespace niccolite::schedule {
namespace {

using testing::HasSubstr;

constexpr uint32_t kUsual = 1000;
constexpr int kAnyDepth = 1 << 20;

TEST(RandomSchedules, SurviveAFile) {
  for (uint32_t i = 0; i < random_programs(kUsual); ++i) {
    const uint32_t seed = first_random_seed() + i;
    std::mt19937 random(seed);
    const Schedule schedule = random_schedule(random).schedule;
    const Result<Schedule> read = from_file(to_file(schedule));
    ASSERT_TRUE(read.is_ok()) << "seed " << seed << ": " << read.status().message();
    ASSERT_TRUE(read.value() == schedule) << "seed " << seed;
  }
}

TEST(RandomSchedules, AreRefusedWithTheReasonWhenTheyAreBroken) {
  const auto mutations = random_mutations();
  std::map<std::string, int> applied;
  const uint32_t programs = random_programs(kUsual);
  for (uint32_t i = 0; i < programs; ++i) {
    const uint32_t seed = first_random_seed() + i;
    std::mt19937 random(seed);
    Schedule schedule;
    std::optional<Reason> reason;
    const char* name = nullptr;
    for (auto m = static_cast<size_t>(random()); !reason; ++m) {
      const RandomMutation& mutation = mutations[m % mutations.size()];
      schedule = random_schedule(random).schedule;
      reason = mutation.apply(schedule, random);
      name = mutation.name;
    }
    ++applied[name];
    const Status status = check(schedule, {.depth = kAnyDepth});
    ASSERT_FALSE(status.is_ok()) << "seed " << seed << ", " << name << ": it is accepted\n"
                                 << to_file(schedule);
    EXPECT_EQ(status.code(), Code::InvalidUsage);
    for (const std::string& text : *reason)
      ASSERT_THAT(status.message(), HasSubstr(text)) << "seed " << seed << ", " << name << "\n"
                                                     << to_file(schedule);
  }
  if (programs >= kUsual) {
    EXPECT_EQ(applied.size(), mutations.size()) << "some mutation never fits";
  }
}

// The depth that was found is the least one: with a slot less they stand still, and say where.
TEST(RandomSchedules, StandStillWithFewerSlots) {
  int deep = 0;
  for (uint32_t i = 0; i < random_programs(kUsual); ++i) {
    const uint32_t seed = first_random_seed() + i;
    std::mt19937 random(seed);
    const RandomSchedule drawn = random_schedule(random);
    if (drawn.least_depth == 1) continue;
    ++deep;
    const Status status = check(drawn.schedule, {.depth = drawn.least_depth - 1});
    ASSERT_FALSE(status.is_ok()) << "seed " << seed;
    ASSERT_THAT(status.message(),
                HasSubstr(fmt::format("deadlock with FIFOs of {} slot", drawn.least_depth - 1)))
        << "seed " << seed;
  }
  if (random_programs(kUsual) >= kUsual) {
    EXPECT_GT(deep, 0);
  }
}

}  // namespace
}  // namespace niccolite::schedule
