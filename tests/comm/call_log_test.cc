// What a rank remembers of its calls, and what it tells of them.
#include "comm/call_log.h"

#include <gtest/gtest.h>

#include <array>

#include "comm/account.h"
#include "tests/comm/calls.h"

namespace niccolite::comm {
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

Account account_of_everything() {
  CallLog log(8);
  for (Collective collective :
       {Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllGather,
        Collective::ReduceScatter, Collective::AllToAll, Collective::Gather, Collective::Scatter}) {
    Call call;
    call.request = {.collective = collective,
                    .count = 1000 + static_cast<size_t>(collective),
                    .type = DataType::Bfloat16,
                    .op = {.operation = Operation::PreMulSum},
                    .root = 7};
    add(log, call);
  }
  add(log, send(3, size_t{1} << 40));
  capture(log, receive(3, 2));
  return {.rank = 5,
          .log = log.content(3),
          .wait = WaitReport{.kind = executor::ReportKind::WaitingForCredit,
                             .peer = 3,
                             .tag = 0xfedc,
                             .least_age = std::chrono::milliseconds(12),
                             .most_age = std::chrono::milliseconds(3456),
                             .lasted = std::chrono::milliseconds(78900),
                             .is_joined = true},
          .hold = std::nullopt,
          .blocked = Blocked{.function = "ncclAllReduce", .holder = "ncclCommSplit"}};
}

Account account_with_hold(size_t length) {
  Account account = account_of_everything();
  account.hold = Hold{.wait = *account.wait, .chain = {}};
  account.wait.reset();
  for (size_t i = 0; i < length; ++i)
    account.hold->chain.push_back({.communicator = 0xfedcba9876543210u + i,
                                   .rank = 5,
                                   .operation = uint64_t{1} << 40,
                                   .call = send(3, 17 + i),
                                   .peer = 3});
  return account;
}

TEST(Account, SurvivesTheWire) {
  const Account sent = account_of_everything();
  const Account got = Account::decode(sent.encode(), 5).take();
  EXPECT_EQ(got.rank, 5);
  EXPECT_EQ(got.log.collectives, sent.log.collectives);
  EXPECT_EQ(got.log.sends, sent.log.sends);
  EXPECT_EQ(got.log.receives, sent.log.receives);
  ASSERT_EQ(got.log.calls.size(), sent.log.calls.size());
  for (size_t i = 0; i < got.log.calls.size(); ++i) {
    EXPECT_EQ(describe(got.log.calls[i].call), describe(sent.log.calls[i].call));
    EXPECT_EQ(tag_of(got.log.calls[i].call), tag_of(sent.log.calls[i].call));
    EXPECT_EQ(got.log.calls[i].number, sent.log.calls[i].number);
    EXPECT_EQ(got.log.calls[i].order, sent.log.calls[i].order);
  }
  ASSERT_TRUE(got.wait.has_value());
  EXPECT_EQ(got.wait->peer, 3);
  EXPECT_EQ(got.wait->tag, 0xfedc);
  EXPECT_EQ(got.wait->least_age.count(), 12);
  EXPECT_EQ(got.wait->most_age.count(), 3456);
  EXPECT_EQ(got.wait->lasted.count(), 78900);
  EXPECT_EQ(got.wait->kind, executor::ReportKind::WaitingForCredit);
  EXPECT_TRUE(got.wait->is_joined);
  ASSERT_TRUE(got.blocked.has_value());
  EXPECT_EQ(got.blocked->describe(), sent.blocked->describe());
}

TEST(Account, SurvivesTheWireWithWhatHoldsItUp) {
  const Account sent = account_with_hold(Hold::kLongest);
  const Account got = Account::decode(sent.encode(), 5).take();
  EXPECT_FALSE(got.wait.has_value());
  ASSERT_TRUE(got.hold.has_value());
  EXPECT_EQ(got.hold->wait.lasted.count(), 78900);
  ASSERT_EQ(got.hold->chain.size(), sent.hold->chain.size());
  for (size_t i = 0; i < got.hold->chain.size(); ++i) {
    const Stuck &was = sent.hold->chain[i], &is = got.hold->chain[i];
    EXPECT_TRUE(is.is_same_as(was));
    EXPECT_EQ(is.peer, 3);
    EXPECT_EQ(describe(is.call), describe(was.call));
  }
}

TEST(Account, WithAHoldThatCannotBeIsRefused) {
  const auto is_refused = [](const Account& account) {
    return !Account::decode(account.encode(), 5).is_ok();
  };
  EXPECT_FALSE(is_refused(account_with_hold(1)));
  EXPECT_TRUE(is_refused(account_with_hold(0)));
  EXPECT_TRUE(is_refused(account_with_hold(Hold::kLongest + 1)));
  Account wrong = account_with_hold(2);
  wrong.hold->chain[1].rank = -1;
  EXPECT_TRUE(is_refused(wrong));
  wrong = account_with_hold(2);
  wrong.hold->chain[1].peer = -7;
  EXPECT_TRUE(is_refused(wrong));
  wrong = account_with_hold(2);
  wrong.wait = wrong.hold->wait;
  EXPECT_TRUE(is_refused(wrong)) << "what waits has begun";
  const Bytes bytes = account_with_hold(2).encode();
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(Account::decode(std::span(bytes).first(length), 5).is_ok()) << length;
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

TEST(Account, CutShortProlongedOrOfUnknownValuesIsRefused) {
  const Bytes bytes = account_of_everything().encode();
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(Account::decode(std::span(bytes).first(length), 5).is_ok()) << length;
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Account::decode(longer, 5).is_ok());
  constexpr size_t kFirstCall = 3 * 16 + 4;
  for (size_t field : {0u, 1u, 2u}) {  // collective, type, operation
    Bytes wrong = bytes;
    wrong[kFirstCall + field] = std::byte{200};
    EXPECT_FALSE(Account::decode(wrong, 5).is_ok()) << field;
  }
}

}  // namespace
}  // namespace niccolite::comm
