// What a client of the RAS port says and hears, as the stock ncclras does.
#include "ras/session.h"

#include <gtest/gtest.h>

namespace niccolite::ras {
namespace {

using Next = Session::Next;

class SessionTest : public testing::Test {
 protected:
  /// What the client hears; `next_` tells what follows.
  std::string say(std::string_view text) {
    std::string heard;
    next_ = session_.receive(text, [&](std::string_view answer) { heard += answer; });
    return heard;
  }
  const Session::Request& asked() const { return session_.request(); }

  Session session_;
  Next next_ = Next::Listen;
};

TEST_F(SessionTest, AnswersAsNcclrasExpects) {
  EXPECT_EQ(say("CLIENT PROTOCOL 2\n"), "SERVER PROTOCOL 2\n");
  EXPECT_EQ(say("TIMEOUT 17\n"), "OK\n");
  EXPECT_EQ(say("SET FORMAT json\n"), "OK\n");
  EXPECT_EQ(next_, Next::Listen);
  EXPECT_EQ(say("STATUS\n"), "");
  EXPECT_EQ(next_, Next::Report);
  EXPECT_TRUE(asked().is_json);
  EXPECT_FALSE(asked().is_verbose);
  EXPECT_EQ(asked().timeout, std::chrono::seconds(17));
}

TEST_F(SessionTest, TakesCommandsInAnyCaseAndPipelined) {
  EXPECT_EQ(say("client protocol 9\r\ntimeout 0\nverbose status\nSTATUS\n"),
            "SERVER PROTOCOL 2\nOK\n");
  EXPECT_EQ(next_, Next::Report);
  EXPECT_TRUE(asked().is_verbose) << "only the first report is given";
  EXPECT_EQ(asked().timeout, std::chrono::seconds(0));
}

TEST_F(SessionTest, TakesALineInPieces) {
  for (const char c : std::string("STATUS")) {
    say(std::string(1, c));
    EXPECT_EQ(next_, Next::Listen);
  }
  say("\n");
  EXPECT_EQ(next_, Next::Report);
}

TEST_F(SessionTest, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(say("HELLO there\n"), "ERROR: Unknown command HELLO there\n");
  EXPECT_EQ(say("STATUSES\n"), "ERROR: Unknown command STATUSES\n");
  EXPECT_EQ(say("TIMEOUT -1\n"), "ERROR: Invalid timeout value -1\n");
  EXPECT_EQ(say("TIMEOUT 5s\n"), "ERROR: Invalid timeout value 5s\n");
  EXPECT_EQ(say("TIMEOUT\n"), "ERROR: Invalid timeout value \n");
  EXPECT_EQ(say("SET FORMAT xml\n"), "ERROR: Invalid format xml\n");
  EXPECT_EQ(say("MONITOR trace,nothing\n"), "ERROR: Invalid event group 'nothing'\n");
  EXPECT_EQ(say("\n"), "ERROR: Unknown command \n");
  EXPECT_EQ(next_, Next::Listen);
}

TEST_F(SessionTest, MonitorsWhatIsAskedFor) {
  EXPECT_EQ(session_.monitors(), 0u);
  EXPECT_EQ(say("MONITOR\n"), "OK\n");
  EXPECT_EQ(session_.monitors(), Session::kLifecycle);
  EXPECT_EQ(say("MONITOR lifecycle,TRACE\n"), "OK\n");
  EXPECT_EQ(session_.monitors(), Session::kLifecycle | Session::kTrace);
  EXPECT_EQ(say("monitor all\n"), "OK\n");
  EXPECT_EQ(session_.monitors(), Session::kAllEvents);
}

TEST_F(SessionTest, EndsWithALineThatDoesNotEnd) {
  say(std::string(Session::kMostLine - 1, 'x'));
  EXPECT_EQ(next_, Next::Listen);
  say("x");
  EXPECT_EQ(next_, Next::End);
}

TEST_F(SessionTest, GivesVerdictsAlone) {
  say("VERDICT\n");
  EXPECT_EQ(next_, Next::Report);
  EXPECT_TRUE(asked().wants_verdicts);
  EXPECT_FALSE(asked().wants_stragglers);
}

TEST_F(SessionTest, GivesStragglersAlone) {
  say("Stragglers\n");
  EXPECT_EQ(next_, Next::Report);
  EXPECT_TRUE(asked().wants_stragglers);
  EXPECT_FALSE(asked().wants_verdicts);
}

}  // namespace
}  // namespace niccolite::ras
