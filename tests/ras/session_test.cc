// What a client of the RAS port says and hears, as the stock ncclras does.
#include "ras/session.h"

#include <gtest/gtest.h>

namespace niccolite::ras {
namespace {

class SessionTest : public testing::Test {
 protected:
  /// What the client hears; `goes_on` tells whether it may say more.
  std::string say(std::string_view text) {
    heard_.clear();
    goes_on_ = session_.receive(text, [this](std::string_view answer) { heard_ += answer; });
    return heard_;
  }

  Session::Request asked_;
  int reports_ = 0;
  bool goes_on_ = true;
  std::string heard_;
  Session session_{
      [this](const Session::Request& request, const std::function<void(std::string_view)>& out) {
        asked_ = request;
        ++reports_;
        out("head");
        out("rest");
      }};
};

TEST_F(SessionTest, AnswersAsNcclrasExpects) {
  EXPECT_EQ(say("CLIENT PROTOCOL 2\n"), "SERVER PROTOCOL 2\n");
  EXPECT_EQ(say("TIMEOUT 17\n"), "OK\n");
  EXPECT_EQ(say("SET FORMAT json\n"), "OK\n");
  EXPECT_TRUE(goes_on_);
  EXPECT_EQ(say("STATUS\n"), "headrest");
  EXPECT_FALSE(goes_on_) << "the end of the report is the end of the connection";
  EXPECT_TRUE(asked_.is_json);
  EXPECT_FALSE(asked_.is_verbose);
  EXPECT_EQ(asked_.timeout.count(), 17);
}

TEST_F(SessionTest, TakesCommandsInAnyCaseAndPipelined) {
  EXPECT_EQ(say("client protocol 9\r\ntimeout 0\nverbose status\nSTATUS\n"),
            "SERVER PROTOCOL 2\nOK\nheadrest");
  EXPECT_EQ(reports_, 1);
  EXPECT_TRUE(asked_.is_verbose);
  EXPECT_EQ(asked_.timeout.count(), 0);
}

TEST_F(SessionTest, TakesALineInPieces) {
  for (const char c : std::string("STATUS")) EXPECT_EQ(say(std::string(1, c)), "");
  EXPECT_EQ(say("\n"), "headrest");
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
  EXPECT_TRUE(goes_on_);
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
  EXPECT_TRUE(goes_on_);
  say("x");
  EXPECT_FALSE(goes_on_);
}

TEST_F(SessionTest, GivesVerdictsAlone) {
  EXPECT_EQ(say("VERDICT\n"), "headrest");
  EXPECT_TRUE(asked_.wants_verdicts);
  EXPECT_FALSE(asked_.wants_stragglers);
}

TEST_F(SessionTest, GivesStragglersAlone) {
  EXPECT_EQ(say("Stragglers\n"), "headrest");
  EXPECT_TRUE(asked_.wants_stragglers);
  EXPECT_FALSE(asked_.wants_verdicts);
}

}  // namespace
}  // namespace niccolite::ras
