// The calls that a rank remembers, and its account of them.
#include "calls/call_log.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/calls/calls.h"

namespace niccolite::calls {
namespace {

void add(CallLog& log, const Call& call) { log.add({&call, 1}, /*is_captured=*/false); }

void capture(CallLog& log, const Call& call) { log.add({&call, 1}, /*is_captured=*/true); }

TEST(CallLog, NumbersCollectivesAndTheMessagesOfEachPairByThemselves) {
  CallLog log(4);
  add(log, all_reduce(1));
  add(log, send(2, 5));
  add(log, send(3, 5));
  add(log, receive(2, 6));
  add(log, send(2, 7));
  add(log, all_reduce(2));
  const CallLog::Content content = log.content(2);
  std::vector<uint64_t> numbers;
  for (const LoggedCall& logged : content.calls) numbers.push_back(logged.number);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(content.collectives.count, 2u);
  EXPECT_EQ(content.sends.count, 2u);
  EXPECT_EQ(content.receives.count, 1u);
  EXPECT_EQ(log.content(3).sends.count, 1u);
  EXPECT_EQ(log.collectives(), 2u);
}

TEST(CallLog, KnowsTheFunctionOfTheLastCall) {
  CallLog log(2);
  EXPECT_EQ(log.last_function(), nullptr);
  for (size_t i = 0; i < CallLog::kKept + 3; ++i) add(log, all_reduce(i));
  EXPECT_STREQ(log.last_function(), "ncclAllReduce");
  capture(log, send(1, 1));
  EXPECT_STREQ(log.last_function(), "ncclSend");
  add(log, broadcast(1, 0));
  EXPECT_STREQ(log.last_function(), "ncclBroadcast");
  const size_t logged = log.content(0).calls.size();
  log.note_function("ncclWaitSignal");
  EXPECT_STREQ(log.last_function(), "ncclWaitSignal");
  EXPECT_EQ(log.content(0).calls.size(), logged) << "it is no call that ranks compare";
}

TEST(CallLog, KeepsTheNewestInOrder) {
  CallLog log(2);
  for (size_t i = 1; i <= 3 * CallLog::kKept + 17; ++i) add(log, all_reduce(i));
  const CallLog::Content content = log.content(1);
  ASSERT_EQ(content.calls.size(), CallLog::kKept);
  for (size_t i = 0; i < content.calls.size(); ++i) {
    EXPECT_EQ(content.calls[i].number, 2 * CallLog::kKept + 18 + i);
    EXPECT_EQ(content.calls[i].call.request.count, content.calls[i].number);
  }
}

TEST(CallLog, GivesCapturedCallsNoNumberAndProvesNothingAfterThem) {
  CallLog log(2);
  add(log, all_reduce(1));
  add(log, send(1, 1));
  capture(log, all_reduce(2));
  add(log, all_reduce(3));
  add(log, send(1, 3));
  const CallLog::Content content = log.content(1);
  EXPECT_EQ(content.collectives, (Numbers{.count = 2, .provable = 1}));
  EXPECT_EQ(content.sends.provable, ~uint64_t{0}) << "messages were not captured";
  ASSERT_EQ(content.calls.size(), 5u);
  EXPECT_TRUE(content.calls[2].is_captured());
  EXPECT_EQ(content.calls[3].number, 2u);
}

TEST(CallLog, KeepsCapturedCallsWhateverIsCalledAfterThem) {
  CallLog log(2);
  capture(log, broadcast(7, 1));
  for (size_t i = 0; i < 2 * CallLog::kKept; ++i) add(log, all_reduce(8));
  for (size_t i = 0; i < 2 * CallLog::kKept; ++i) capture(log, all_reduce(9));
  const CallLog::Content content = log.content(1);
  ASSERT_EQ(content.calls.size(), CallLog::kKept + 2);
  EXPECT_EQ(content.calls.front().call.request.collective, Collective::Broadcast);
  EXPECT_TRUE(content.calls.back().is_captured());
  EXPECT_EQ(content.calls.back().call.request.count, 9u);
}

TEST(CallLog, KnowsWhichCallsWereLaunchedTogether) {
  CallLog log(2);
  add(log, all_reduce(1));
  EXPECT_FALSE(log.was_joined(tag_of(all_reduce(1))));
  log.add(std::array{all_reduce(2), all_reduce(3)}, /*is_captured=*/false);
  EXPECT_TRUE(log.was_joined(tag_of(all_reduce(2))));
  EXPECT_FALSE(log.was_joined(tag_of(all_reduce(1))));
}

TEST(CallLog, KnowsTheStreamOfItsLaunchesWhileThereIsOne) {
  CallLog log(2);
  EXPECT_EQ(log.only_stream(), std::nullopt);
  for (int i = 0; i < 2; ++i) {
    log.before_launch_on(5);
    EXPECT_EQ(log.only_stream(), 5u);
  }
  log.before_launch_on(6);
  log.before_launch_on(5);
  EXPECT_EQ(log.only_stream(), std::nullopt);
  CallLog captured(2);
  captured.before_launch_on(std::nullopt);
  captured.before_launch_on(5);
  EXPECT_EQ(captured.only_stream(), std::nullopt) << "graphs may run at any time";
}

}  // namespace
}  // namespace niccolite::calls
