#include "comm/reach_history.h"

#include <gtest/gtest.h>

namespace niccolite::comm {
namespace {

using Use = ReachHistory::Use;

void note(ReachHistory& history, Use use, int launches) {
  for (int i = 0; i < launches; ++i) history.note(use);
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
  for (int buffer = 0; buffer < 7; ++buffer) {
    note(history, Use::Missed, 1);
    note(history, Use::Awaited, 100);
    EXPECT_FALSE(history.wishes_reach());
  }
  note(history, Use::Reached, 4);
  note(history, Use::Awaited, 1);
  note(history, Use::Reached, 4);
  EXPECT_TRUE(history.wishes_reach());
  for (int buffer = 0; buffer < 7; ++buffer) {
    note(history, Use::Missed, 1);
    note(history, Use::Awaited, 100);
    EXPECT_TRUE(history.wishes_reach());
  }
  note(history, Use::Missed, 1);
  EXPECT_FALSE(history.wishes_reach());
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
}  // namespace niccolite::comm
