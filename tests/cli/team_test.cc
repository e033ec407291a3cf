#include "cli/perf/team.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace niccolite::perf {
namespace {

TEST(Team, SeesAllRecordsAfterEachBarrier) {
  constexpr int kThreads = 5;
  constexpr int kRounds = 200;
  Result<Team> team = Team::create(kThreads, kThreads);
  ASSERT_TRUE(team.is_ok()) << team.status().message();
  std::vector<int> mismatches(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 1; round <= kRounds; ++round) {
        team->records()[static_cast<size_t>(thread)].microseconds = round * 100 + thread;
        if (!team->barrier().is_ok()) ++mismatches[static_cast<size_t>(thread)];
        for (int other = 0; other < kThreads; ++other)
          if (team->records()[static_cast<size_t>(other)].microseconds != round * 100 + other)
            ++mismatches[static_cast<size_t>(thread)];
        if (!team->barrier().is_ok()) ++mismatches[static_cast<size_t>(thread)];
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(mismatches, ::testing::Each(0));
  EXPECT_EQ(team->progress(), 2u * kRounds * kThreads);
}

TEST(Team, IsOneForAllWhoHaveItsDescriptor) {
  Result<Team> team = Team::create(2, 3);
  ASSERT_TRUE(team.is_ok());
  Result<Team> same = Team::attach(Fd(dup(team->fd())), 2, 3);
  ASSERT_TRUE(same.is_ok());
  std::thread other([&] {
    same->id(1).internal[127] = 42;
    same->barrier().ignore("checked by the other side");
  });
  EXPECT_TRUE(team->barrier().is_ok());
  other.join();
  EXPECT_EQ(team->id(1).internal[127], 42);
}

TEST(Team, AbortEndsEveryWait) {
  Result<Team> team = Team::create(3, 3);
  ASSERT_TRUE(team.is_ok());
  std::vector<std::thread> threads;
  std::vector<std::string> messages(2);
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] { messages[i] = team->barrier().message(); });
  team->abort();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(messages, ::testing::Each("another rank failed"));
}

}  // namespace
}  // namespace niccolite::perf
