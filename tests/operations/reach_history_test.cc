#include "operations/reach_history.h"

#include <gtest/gtest.h>

namespace niccolite::operations {
namespace {

using Use = ReachHistory::Use;

void note(ReachHistory& history, Use::Kind kind, int launches, uint64_t memory = 0) {
  for (int i = 0; i < launches; ++i) history.note({kind, memory});
}

TEST(ReachHistory, KeepsTheWishOfBuffersThatWereNotReachedForLong) {
  ReachHistory history;
  note(history, Use::Missed, 100);
  EXPECT_FALSE(history.wishes_reach());
  note(history, Use::Reached, 8);
  EXPECT_TRUE(history.wishes_reach());
  note(history, Use::Reached, 1);
  EXPECT_TRUE(history.wishes_reach());
}

// What is new is used many times before its peers have mapped it.
TEST(ReachHistory, CountsABufferThatIsAwaitedOnce) {
  ReachHistory history;
  note(history, Use::Awaited, 50, 1);
  note(history, Use::Reached, 4);
  note(history, Use::Awaited, 10, 1);
  note(history, Use::Reached, 4);
  EXPECT_TRUE(history.wishes_reach());
  for (uint64_t memory = 2; memory < 9; ++memory) {
    note(history, Use::Awaited, 50, memory);
    EXPECT_TRUE(history.wishes_reach());
  }
  note(history, Use::Awaited, 1, 9);
  EXPECT_FALSE(history.wishes_reach());
}

// Another history's misses are its own, and what is never mapped is not awaited for ever.
TEST(ReachHistory, LosesPatience) {
  ReachHistory history, other;
  note(history, Use::Reached, 8);
  note(other, Use::Reached, 8);
  note(history, Use::Awaited, 400, 1);
  EXPECT_TRUE(history.wishes_reach());
  note(history, Use::Awaited, 100, 1);
  EXPECT_FALSE(history.wishes_reach());
  EXPECT_TRUE(other.wishes_reach());
}

TEST(ReachHistory, TakesTheWorstOfALaunch) {
  EXPECT_GT(Use{Use::Missed}, (Use{Use::Awaited, 7}));
  EXPECT_GT((Use{Use::Awaited, 7}), Use{Use::Reached});
}

TEST(ReachHistory, IsSurerEachTimeItHasChangedBack) {
  ReachHistory history;
  for (const int enough : {8, 32, 128, 256, 256}) {
    note(history, Use::Reached, enough - 1);
    EXPECT_FALSE(history.wishes_reach());
    note(history, Use::Reached, 1);
    EXPECT_TRUE(history.wishes_reach());
    note(history, Use::Missed, 7);
    EXPECT_TRUE(history.wishes_reach());
    note(history, Use::Missed, 1);
    EXPECT_FALSE(history.wishes_reach());
  }
}

}  // namespace
}  // namespace niccolite::operations
