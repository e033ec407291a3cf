// A rank's account of its calls and waits survives the wire.
#include "diagnosis/account.h"

#include <gtest/gtest.h>

#include <array>

#include "calls/call_log.h"
#include "tests/calls/calls.h"

namespace niccolite::diagnosis {

using namespace calls;
namespace {

void add(CallLog& log, const Call& call) { log.add({&call, 1}, /*is_captured=*/false); }

void capture(CallLog& log, const Call& call) { log.add({&call, 1}, /*is_captured=*/true); }

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
}  // namespace niccolite::diagnosis
