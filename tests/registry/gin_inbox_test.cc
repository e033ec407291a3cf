// GinInbox: gets that come while the proxy ends.
#include "registry/gin_inbox.h"

#include <gtest/gtest.h>

namespace niccolite::registry {
namespace {

TEST(GinInbox, IsNotClosedBeforeItsGetsAreTaken) {
  GinInbox<int> inbox;
  EXPECT_TRUE(inbox.add(1));
  EXPECT_FALSE(inbox.close_if_empty());
  EXPECT_TRUE(inbox.add(2));
  EXPECT_EQ(inbox.take(), (std::deque<int>{1, 2}));
  EXPECT_TRUE(inbox.close_if_empty());
}

// Its kernel would wait for ever.
TEST(GinInbox, RefusesGetsThatNobodyWouldAnswer) {
  GinInbox<int> inbox;
  EXPECT_TRUE(inbox.close_if_empty());
  EXPECT_FALSE(inbox.add(1));
  EXPECT_TRUE(inbox.take().empty());
}

}  // namespace
}  // namespace niccolite::registry
