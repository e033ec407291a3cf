// Watches over several communicators whose operations share streams: what holds up what, from one
// communicator to the next, and when that is a proof.
#include <gmock/gmock.h>

#include "base/log.h"
#include "tests/calls/calls.h"
#include "tests/diagnosis/world.h"

namespace niccolite::diagnosis {

using namespace calls;
namespace {

using executor::ReportKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

/// Reports of waits that go on.
struct Waiting {
  World& world;
  int rank, peer;
  Call call;
  ReportKind kind = ReportKind::Waiting;
};

void wait_for(Devices& devices, milliseconds length, const std::vector<Waiting>& waits,
              int repeats = 0) {
  for (const auto end = devices.now + length; devices.now < end; ++repeats) {
    devices.pass(executor::kReportInterval);
    for (const Waiting& wait : waits)
      wait.world.wait(wait.rank, wait.peer, wait.call, repeats, wait.kind);
  }
  devices.pass(milliseconds(100));
}

/// Two communicators of the same two devices.
class WatchOfTwo : public testing::Test {
 protected:
  /// One call of each rank on each communicator. The order does not matter to the watches: the
  /// waits say which came first on the stream.
  void make_both() {
    for (int rank : {0, 1}) {
      a_.launch(rank, of_a_);
      b_.launch(rank, of_b_);
    }
  }
  std::string failure() const { return a_.failure() + b_.failure(); }

  Devices devices_;
  World a_{devices_, {0, 1}}, b_{devices_, {0, 1}};
  const Call of_a_ = all_reduce(1), of_b_ = all_reduce(2);
  const std::vector<Waiting> crossed_{{a_, 0, 1, of_a_}, {b_, 1, 0, of_b_}};
};

TEST_F(WatchOfTwo, NamesCallsInOppositeOrderToBothCommunicators) {
  make_both();
  wait_for(devices_, milliseconds(750), crossed_);
  for (const World* world : {&a_, &b_}) {
    ASSERT_FALSE(world->failures().empty());
    EXPECT_EQ(world->failures()[0].code(), Code::InvalidUsage);
  }
  EXPECT_THAT(a_.failure(),
              HasSubstr("rank 0 waits in ncclAllReduce(count 1, float, sum) of communicator 0xc1 "
                        "for rank 1, whose stream waits in ncclAllReduce(count 2, float, sum) of "
                        "communicator 0xc2 as rank 1 for rank 0, and none can go on"));
  EXPECT_THAT(b_.failure(),
              HasSubstr("rank 1 waits in ncclAllReduce(count 2, float, sum) of communicator 0xc2 "
                        "for rank 0, whose stream waits in ncclAllReduce(count 1, float, sum) of "
                        "communicator 0xc1 as rank 0 for rank 1, and none can go on"));
}

TEST_F(WatchOfTwo, GoesOnTellingOthersWhatAFailedCommunicatorHoldsUp) {
  make_both();
  wait_for(devices_, milliseconds(250), crossed_);
  b_.of(0).is_unreachable = true;
  wait_for(devices_, seconds(5), crossed_, 1);
  EXPECT_THAT(a_.failure(), HasSubstr("none can go on"));
  EXPECT_EQ(b_.failure(), "");
  b_.of(0).is_unreachable = false;
  wait_for(devices_, seconds(10), crossed_, 21);
  EXPECT_THAT(b_.failure(), HasSubstr("none can go on"));
}

TEST_F(WatchOfTwo, NamesWaitsThatAreReportedSeldom) {
  make_both();
  for (int repeats = 0; repeats < 2; ++repeats) {
    devices_.pass(3 * executor::kReportInterval);
    for (const Waiting& wait : crossed_) wait.world.wait(wait.rank, wait.peer, wait.call, repeats);
  }
  devices_.pass(milliseconds(50));
  for (const World* world : {&a_, &b_}) EXPECT_THAT(world->failure(), HasSubstr("none can go on"));
}

TEST_F(WatchOfTwo, WaitsForACallThatHasNotBeenMade) {
  a_.launch(0, of_a_);
  b_.launch(0, of_b_);
  b_.launch(1, of_b_);
  wait_for(devices_, seconds(60), crossed_);
  EXPECT_EQ(failure(), "");
  EXPECT_THAT(log::last_error(),
              HasSubstr("stands still: rank 0 (process 100 on host box) has not come to it: its "
                        "stream waits in ncclAllReduce(count 1, float, sum) of communicator 0xc1, "
                        "there as rank 0, for rank 1 (60 s so far)"));
}

// The second of equal calls has not been made, and the first was made on both ranks.
TEST_F(WatchOfTwo, WaitsForTheLastOfEqualCalls) {
  make_both();
  a_.launch(0, of_a_);
  b_.launch(0, of_b_);
  b_.launch(1, of_b_);
  wait_for(devices_, seconds(20), crossed_);
  EXPECT_EQ(failure(), "");
  a_.launch(1, of_a_);
  wait_for(devices_, seconds(1), crossed_, 100);
  wait_for(devices_, seconds(40), crossed_, 104);
  EXPECT_THAT(failure(), HasSubstr("none can go on"));
}

TEST_F(WatchOfTwo, MindsNoOppositeOrderOnDifferentStreams) {
  // Slow, since a third party takes the GPUs' time.
  for (int rank : {0, 1}) {
    a_.launch(rank, of_a_, rank == 0 ? 7 : 8);
    b_.launch(rank, of_b_, rank == 0 ? 7 : 9);
  }
  wait_for(devices_, seconds(20), crossed_);
  EXPECT_EQ(failure(), "");
}

TEST_F(WatchOfTwo, MindsNoEqualStreamsOfDifferentDevices) {
  World other(devices_, {0, 2});
  a_.launch(0, of_a_);
  other.launch(0, of_b_);
  other.launch(1, of_b_);
  a_.launch(1, of_a_);
  wait_for(devices_, seconds(20), {{a_, 0, 1, of_a_}, {other, 1, 0, of_b_}});
  EXPECT_EQ(a_.failure() + other.failure(), "");
}

TEST_F(WatchOfTwo, ProvesNothingFromCallsInGraphsOrOnSeveralStreams) {
  for (const bool is_captured : {true, false}) {
    Devices devices;
    World a(devices, {0, 1}), b(devices, {0, 1});
    for (int rank : {0, 1}) {
      a.launch(rank, of_a_);
      b.launch(rank, of_b_);
      b.of(rank).log.before_launch_on(is_captured ? std::nullopt : std::optional<uint64_t>(8));
      b.of(rank).log.add({&of_b_, 1}, is_captured);
    }
    wait_for(devices, seconds(20), {{a, 0, 1, of_a_}, {b, 1, 0, of_b_}});
    EXPECT_EQ(a.failure() + b.failure(), "");
  }
}

TEST_F(WatchOfTwo, TellsOfTwoOperationsTheOneThatWaitsNow) {
  make_both();
  wait_for(devices_, milliseconds(250), {{a_, 1, 0, of_a_}});
  EXPECT_TRUE(a_.of(1).watch->account(0).wait.has_value());
  EXPECT_FALSE(a_.of(1).watch->account(0).hold.has_value());
  wait_for(devices_, milliseconds(250), {{b_, 1, 0, of_b_}});
  EXPECT_FALSE(a_.of(1).watch->account(0).wait.has_value());
  EXPECT_TRUE(a_.of(1).watch->account(0).hold.has_value());
  wait_for(devices_, milliseconds(250), {{a_, 1, 0, of_a_}});
  EXPECT_TRUE(a_.of(1).watch->account(0).wait.has_value());
  EXPECT_FALSE(a_.of(1).watch->account(0).hold.has_value());
}

TEST_F(WatchOfTwo, IsNotMisledByRanksThatAreLateInTurn) {
  // One order, (a, b), again and again. First one rank is late for a, then the other one for b: the
  // last reports always name the other rank, and its other communicator.
  for (int round = 0; round < 20; ++round) {
    a_.launch(0, of_a_);
    b_.launch(0, of_b_);
    wait_for(devices_, seconds(2), {{a_, 0, 1, of_a_}});
    a_.launch(1, of_a_);
    b_.launch(1, of_b_);
    wait_for(devices_, seconds(2), {{b_, 1, 0, of_b_}});
  }
  EXPECT_EQ(failure(), "");
}

TEST_F(WatchOfTwo, IsNotMisledByWaitsThatEnd) {
  // Crossed, but each wait is over before the other begins.
  make_both();
  for (int round = 0; round < 20; ++round) {
    for (const Waiting& wait : crossed_) wait_for(devices_, milliseconds(250), {wait});
  }
  EXPECT_EQ(failure(), "");
}

TEST_F(WatchOfTwo, IsNotMisledByAWatchdogThatIsLate) {
  // Rank 0 waited, and then, before its watchdog looks again, rank 1 came, went on, and waits.
  make_both();
  devices_.pass(seconds(1));
  a_.wait(0, 1, of_a_);
  a_.of(0).is_stalled = true;
  wait_for(devices_, seconds(2), {{b_, 1, 0, of_b_}});
  a_.of(0).is_stalled = false;
  wait_for(devices_, seconds(2), {{b_, 1, 0, of_b_}}, 8);
  EXPECT_EQ(failure(), "");
}

TEST_F(WatchOfTwo, MindsNoOperationThatIsToldToEnd) {
  make_both();
  for (int rank : {0, 1}) b_.of(rank).control.abort = 1;
  wait_for(devices_, seconds(5), crossed_);
  EXPECT_EQ(a_.failure(), "");
}

// It ends by itself, whatever ranks call: no part of a circle.
TEST_F(WatchOfTwo, MindsNoOperationThatHasOnlyToBeAcknowledged) {
  make_both();
  std::vector<Waiting> waits = crossed_;
  waits.front().kind = ReportKind::WaitingForAcknowledgement;
  wait_for(devices_, seconds(5), waits);
  EXPECT_EQ(failure(), "");
}

TEST_F(WatchOfTwo, NamesAMessageThatIsHeldUp) {
  a_.launch(0, send(1, 10));
  b_.launch(0, of_b_);
  b_.launch(1, of_b_);
  const std::vector<Waiting> waits{{a_, 0, 1, send(1, 10), ReportKind::WaitingForCredit},
                                   {b_, 1, 0, of_b_}};
  wait_for(devices_, seconds(5), waits);
  EXPECT_EQ(failure(), "") << "nobody has called the other end";
  a_.launch(1, receive(0, 10));
  wait_for(devices_, seconds(10), waits, 20);
  EXPECT_THAT(a_.failure(), AllOf(HasSubstr("rank 0 waits in ncclSend(count 10, float, peer 1) of "
                                            "communicator 0xc1 for rank 1"),
                                  HasSubstr("waits in ncclAllReduce(count 2,")));
}

TEST(WatchOfMany, FollowsRanksOfACollectiveToTheOneThatIsHeldUp) {
  // Rank 2 alone has the other order. Rank 0 waits for 1, and that for 2.
  Devices devices;
  World a(devices, {0, 1, 2}), b(devices, {2, 1, 0});
  for (int rank : {0, 1, 2}) {
    a.launch(rank, all_reduce(1));
    b.launch(rank, all_reduce(2));
  }
  wait_for(devices, seconds(1),
           {{a, 0, 1, all_reduce(1)}, {a, 1, 2, all_reduce(1)}, {b, 0, 2, all_reduce(2)}});
  EXPECT_THAT(b.failure(),
              HasSubstr("rank 0 waits in ncclAllReduce(count 2, float, sum) of communicator 0xc2 "
                        "for rank 2, whose stream waits in ncclAllReduce(count 1, float, sum) of "
                        "communicator 0xc1 as rank 0 for rank 2"));
}

TEST(WatchOfMany, DoesNotFollowRanksOfACollectiveThatNeedsNotAll) {
  // Rank 1 waits for credit of rank 2, and may send to rank 0 all the same.
  Devices devices;
  World a(devices, {0, 1, 2}), b(devices, {2, 0});
  for (int rank : {0, 1, 2}) a.launch(rank, broadcast(1, 1));
  for (int rank : {0, 1}) b.launch(rank, all_reduce(2));
  wait_for(devices, seconds(20),
           {{a, 0, 1, broadcast(1, 1)}, {a, 1, 2, broadcast(1, 1)}, {b, 0, 1, all_reduce(2)}});
  EXPECT_EQ(a.failure() + b.failure(), "");
}

TEST(WatchOfMany, NamesARingOfCommunicatorsInTime) {
  for (const int ranks : {3, 4, 12}) {
    Devices devices;
    std::deque<World> ring;
    std::vector<Waiting> waits;
    for (int rank = 0; rank < ranks; ++rank)
      ring.emplace_back(devices, std::vector{rank, (rank + 1) % ranks});
    for (World& world : ring) {
      for (int rank : {0, 1}) world.launch(rank, all_reduce(1));
      waits.push_back({world, 0, 1, all_reduce(1)});
    }
    wait_for(devices, ranks * executor::kReportInterval, waits);
    for (const World& world : ring) {
      EXPECT_THAT(world.failure(), HasSubstr(ranks <= 8 ? "for rank 1, and none can go on"
                                                        : "for rank 1, and so on for 4 ranks, and "
                                                          "none can go on"));
      for (const World& other : ring) {
        if (ranks > 8) continue;
        EXPECT_THAT(world.failure(), HasSubstr(fmt::format("communicator 0x{:x} ", other.id())));
      }
    }
  }
}

TEST(WatchOfMany, SaysNothingOfACircleThatItIsNoPartOf) {
  Devices devices;
  World a(devices, {0, 1}), b(devices, {0, 1}), tail(devices, {2, 0});
  for (int rank : {0, 1}) {
    a.launch(rank, all_reduce(1));
    b.launch(rank, all_reduce(2));
    tail.launch(rank, all_reduce(3));
  }
  wait_for(devices, seconds(5),
           {{a, 0, 1, all_reduce(1)}, {b, 1, 0, all_reduce(2)}, {tail, 0, 1, all_reduce(3)}});
  EXPECT_THAT(a.failure(), HasSubstr("none can go on"));
  EXPECT_EQ(tail.failure(), "");
}

}  // namespace
}  // namespace niccolite::diagnosis
