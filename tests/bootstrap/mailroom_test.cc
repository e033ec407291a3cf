// Calls to ranks of another process, none of which answers.
#include "bootstrap/mailroom.h"

#include <gtest/gtest.h>

#include "bootstrap/absences.h"

namespace niccolite::bootstrap {
namespace {

using namespace std::chrono_literals;

// A thousand ranks that leave at once ask about each other: each question costs a look at the table
// under the lock, and some a file of /proc.
TEST(Mailroom, AsksOnceInEachIntervalWhetherTheProcessOfManyRanksIsAbsent) {
  constexpr int32_t kRanks = 33;
  std::mutex mutex;
  Roster roster(mutex);
  roster.set_place(0, 2, kRanks);
  std::vector<messages::ProcessEntry> table(2);
  table[0].ranks = {0};
  for (int32_t rank = 1; rank < kRanks; ++rank) table[1].ranks.push_back(rank);
  ASSERT_TRUE(roster.set_table(std::move(table)).is_ok());
  const auto local = std::make_shared<Local>(0, kRanks, nullptr);
  roster.add(local);
  int questions = 0;
  Mailroom mailroom(
      roster, [](const std::function<void()>&) {},
      [](uint32_t, const std::shared_ptr<const Bytes>&) {}, [](uint32_t) {},
      {.are_some_absent = [] { return true; },
       .is_absent =
           [&](uint32_t) {
             ++questions;
             return false;
           }});
  std::vector<Query> queries;
  for (int32_t rank = 1; rank < kRanks; ++rank) queries.push_back({.peer = rank, .message = {}});
  Roster::Lock lock = roster.lock();
  const auto answers =
      mailroom.request(lock, *local, queries,
                       {.deadline = Deadline::after(3 * Absences::kLookInterval + 50ms),
                        .patience = Patience::WhileItRuns,
                        .cancel = nullptr});
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_LE(questions, 1 + 3);  // at first, and after each interval
}

}  // namespace
}  // namespace niccolite::bootstrap
