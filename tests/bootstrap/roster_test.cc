// Who is gone, and why, as a process comes to know it.
#include "bootstrap/roster.h"

#include <gmock/gmock.h>

namespace niccolite::bootstrap {
namespace {

using testing::HasSubstr;

class RosterOfThree : public testing::Test {
 protected:
  RosterOfThree() {
    roster.set_place(0, 3, 3);
    std::vector<messages::ProcessEntry> table(3);
    for (int rank = 0; rank < 3; ++rank) table[static_cast<size_t>(rank)].ranks = {rank};
    EXPECT_TRUE(roster.set_table(std::move(table)).is_ok());
  }
  std::string why(int rank) const { return roster.why_gone(rank).message(); }

  std::mutex mutex;
  Roster roster{mutex};
};

// It dialed a process that had just died, and the news of the death came later.
TEST_F(RosterOfThree, ALossThatIsHeardOfLaterExplainsARefusedConnection) {
  roster.mark_departed(1, Status::remote_error("connection refused"));
  EXPECT_THAT(why(1), HasSubstr("connection refused"));
  roster.mark_lost(1, Status::remote_error("connection reset"));
  EXPECT_THAT(why(1), HasSubstr("rank 1"));
  EXPECT_THAT(why(1), HasSubstr("ended unexpectedly: connection reset"));
  EXPECT_FALSE(roster.has_left(1));
  roster.mark_departed(1, {});
  EXPECT_THAT(why(1), HasSubstr("ended unexpectedly: connection reset"));
}

TEST_F(RosterOfThree, WhoHasSaidGoodbyeHasLeft) {
  roster.mark_departed(1, {});
  roster.mark_lost(1, Status::remote_error("connection reset"));
  EXPECT_TRUE(roster.has_left(1));
  EXPECT_THAT(why(1), HasSubstr("has left the communicator"));
  EXPECT_TRUE(roster.why_gone(2).is_ok());
}

}  // namespace
}  // namespace niccolite::bootstrap
