#include "comm/reach_history.h"

#include <gtest/gtest.h>

namespace niccolite::comm {
namespace {

void note(ReachHistory& history, bool is_reached, int launches) {
  for (int i = 0; i < launches; ++i) history.note(is_reached);
}

TEST(ReachHistory, KeepsTheWishOfBuffersThatWereNotReachedForLong) {
  ReachHistory history;
  note(history, false, 100);
  EXPECT_FALSE(history.wishes_reach());
  note(history, true, 8);
  EXPECT_TRUE(history.wishes_reach());
  note(history, true, 1);
  EXPECT_TRUE(history.wishes_reach());
}

TEST(ReachHistory, IsSurerEachTimeItHasChangedBack) {
  ReachHistory history;
  for (const int enough : {8, 32, 128, 256, 256}) {
    note(history, true, enough - 1);
    EXPECT_FALSE(history.wishes_reach());
    note(history, true, 1);
    EXPECT_TRUE(history.wishes_reach());
    note(history, false, 3);
    EXPECT_TRUE(history.wishes_reach());
    note(history, false, 1);
    EXPECT_FALSE(history.wishes_reach());
  }
}

}  // namespace
}  // namespace niccolite::comm
