// Watches over ranks without GPUs, threads or clocks: logs are filled and reports stored by hand.
#include <gmock/gmock.h>

#include "base/log.h"
#include "tests/calls/calls.h"
#include "tests/diagnosis/world.h"

namespace niccolite::diagnosis {

using namespace calls;
namespace {

using executor::Report;
using executor::ReportKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

TEST(Watch, NamesBothCallsAndRanksOfAMismatch) {
  World world(3);
  world.call_all(all_reduce(1));
  world.call(0, all_reduce(1024));
  world.call(2, broadcast(1024, 1));
  world.mismatch(0, 2, all_reduce(1024), broadcast(1024, 1));
  world.pass(milliseconds(50));
  ASSERT_EQ(world.failures().size(), 1u);
  EXPECT_EQ(world.failures()[0].code(), Code::InvalidUsage);
  EXPECT_THAT(
      world.failure(),
      AllOf(HasSubstr("rank 0 called ncclAllReduce(count 1024, float, sum) as its collective #2"),
            HasSubstr("rank 2 called ncclBroadcast(count 1024, float, root 1) as its collective "
                      "#2")));
}

TEST(Watch, NamesTheFirstDifferenceRatherThanTheOneThatWasNoticed) {
  World world(2);
  world.call(0, all_reduce(5));
  world.call_all(all_reduce(6));
  world.call_all(all_reduce(7));
  world.mismatch(1, 0, all_reduce(7), all_reduce(6));
  world.pass(milliseconds(50));
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("rank 1 called ncclAllReduce(count 6, float, sum)"),
                                     HasSubstr("rank 0 called ncclAllReduce(count 5, float, sum)"),
                                     HasSubstr("#1")));
}

TEST(Watch, NamesAMismatchOfGraphs) {
  World world(2);
  for (int rank : {0, 1}) world.capture(rank, all_reduce(1));
  world.capture(0, all_reduce(2));
  world.capture(1, broadcast(2, 0));
  world.mismatch(1, 0, broadcast(2, 0), all_reduce(2));
  world.pass(milliseconds(50));
  EXPECT_THAT(world.failure(),
              AllOf(HasSubstr("rank 1 called ncclBroadcast(count 2, float, root 0) in a graph"),
                    HasSubstr("rank 0 called ncclAllReduce(count 2, float, sum) in a graph")));
}

TEST(Watch, NamesBothSizesOfAMessage) {
  for (bool is_captured : {false, true}) {
    World world(2);
    const Call sent = send(1, 1000), received = receive(0, 2000);
    world.of(0).log.add({&sent, 1}, is_captured);
    world.of(1).log.add({&received, 1}, is_captured);
    world.mismatch(1, 0, receive(0, 2000), send(1, 1000));
    world.pass(milliseconds(50));
    EXPECT_THAT(world.failure(),
                AllOf(HasSubstr("rank 0 sends 4000 bytes to rank 1 (ncclSend(count 1000, float, "
                                "peer 1))"),
                      HasSubstr("receives 8000 (ncclRecv(count 2000, float, peer 0))")));
  }
}

TEST(Watch, WaitsForTheLogOfACallThatWasJustLaunched) {
  World world(2);
  world.mismatch(0, 1, all_reduce(1), all_reduce(2));
  world.pass(milliseconds(200));
  EXPECT_THAT(world.failures(), testing::IsEmpty());
  world.call(0, all_reduce(1));
  world.call(1, all_reduce(2));
  world.pass(milliseconds(50));
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("count 1,"), HasSubstr("count 2,")));
}

TEST(Watch, AccusesEvenWhenThePeerDoesNotAnswer) {
  World world(2);
  world.call(0, all_reduce(1));
  world.of(1).is_unreachable = true;
  world.mismatch(0, 1, all_reduce(1), all_reduce(2));
  world.pass(seconds(3));
  ASSERT_EQ(world.failures().size(), 1u);
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("rank 0 called ncclAllReduce(count 1, float, sum)"),
                                     HasSubstr("rank 1")));
}

// The rank that a third one told of the difference leaves; the news is on its way here, too.
TEST(Watch, LetsAnotherRankNameACallOfARankThatHasLeft) {
  for (const bool is_unreachable : {false, true}) {
    World world(3);
    world.call_all(all_reduce(1));
    world.of(1).has_left = true;
    world.of(1).is_unreachable = is_unreachable;
    world.mismatch(0, 1, all_reduce(1), all_reduce(3));  // of which the log says nothing
    world.pass(seconds(1));
    EXPECT_THAT(world.failures(), testing::IsEmpty());
    world.of(0).has_failed = true;
    world.pass(seconds(3));
    EXPECT_THAT(world.failures(), testing::IsEmpty());
  }
}

TEST(Watch, FindsTheDifferenceThatALongWaitComesFrom) {
  // 0 waits for 1, which has done the same, and waits for 2, which has not.
  World world(3);
  world.call_all(all_reduce(1));
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  world.call(2, all_reduce(3));
  world.pass(seconds(1));
  world.wait(1, 2, all_reduce(2));
  world.pass(milliseconds(50));
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("rank 1 called"), HasSubstr("rank 2 called"),
                                     HasSubstr("count 2,"), HasSubstr("count 3,")));
}

TEST(Watch, FindsMessagesOfDifferentSizesInTheirOrder) {
  World world(3);
  world.call(0, send(1, 1));
  world.call(0, send(2, 9));
  world.call(0, send(1, 2));
  world.call(1, receive(0, 1));
  world.call(1, receive(0, 3));
  world.pass(milliseconds(50));
  world.wait(1, 0, receive(0, 3));
  world.pass(milliseconds(50));
  EXPECT_THAT(world.failure(),
              AllOf(HasSubstr("rank 0 sends 8 bytes to rank 1"), HasSubstr("receives 12")));
}

TEST(Watch, WaitsForALateRankForEver) {
  World world(3);
  world.call_all(all_reduce(1));
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  world.wait_for(seconds(200), [&](int repeats) {
    world.wait(0, 2, all_reduce(2), repeats);
    world.wait(1, 0, all_reduce(2), repeats);
  });
  EXPECT_EQ(world.failure(), "");
  EXPECT_THAT(
      log::last_error(),
      AllOf(HasSubstr("ncclAllReduce(count 2, float, sum), collective #2, stands still: rank 2"),
            HasSubstr("its last call was ncclAllReduce(count 1, float, sum), collective #1"),
            HasSubstr("(60 s so far)")));
  EXPECT_LT(world.of(2).asked, 40) << "asked too often";
}

TEST(Watch, DoesNotCompareNumbersOfCallsAfterACapture) {
  // The first rank replays what the second one calls live; both are right.
  World world(2);
  world.capture(0, all_reduce(1));
  world.call(1, all_reduce(1));
  world.call_all(all_reduce(2));
  world.call(1, all_reduce(1));
  world.call_all(all_reduce(3));
  world.wait_for(seconds(100), [&](int repeats) { world.wait(0, 1, all_reduce(3), repeats); });
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, DoesNotMindDifferentNumbersOfMessages) {
  World world(3);
  for (int i = 0; i < 5; ++i) world.call(0, send(1, 10));
  for (int i = 0; i < 3; ++i) world.call(1, receive(0, 10));
  world.call(2, send(0, 77));
  world.call_all(all_reduce(1));
  world.wait_for(seconds(50), [&](int repeats) { world.wait(0, 1, send(1, 10), repeats); });
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, FindsRanksThatWaitForEachOtherInDifferentGraphs) {
  World world(3);
  for (int rank : {0, 1}) world.capture(rank, all_reduce(1));
  world.capture(2, broadcast(100, 0));
  world.wait_for(seconds(4), [&](int repeats) {
    world.wait(0, 2, all_reduce(1), repeats);
    world.wait(1, 0, all_reduce(1), repeats);
    world.wait(2, 1, broadcast(100, 0), repeats);
  });
  ASSERT_FALSE(world.failures().empty());
  EXPECT_THAT(world.failure(),
              AllOf(HasSubstr("ncclAllReduce(count 1, float, sum) in a graph"),
                    HasSubstr("rank 2 waits in ncclBroadcast(count 100, float, root 0)")));
}

TEST(Watch, FindsACollectiveAndAMessageThatWaitForEachOther) {
  World world(2);
  world.call(0, all_reduce(1));
  world.call(1, receive(0, 5));
  world.wait_for(seconds(4), [&](int repeats) {
    world.wait(0, 1, all_reduce(1), repeats);
    world.wait(1, 0, receive(0, 5), repeats);
  });
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("rank 0"), HasSubstr("ncclAllReduce(count 1,"),
                                     HasSubstr("rank 1"), HasSubstr("ncclRecv(count 5,")));
}

TEST(Watch, IsNotMisledByRanksThatWaitInTurn) {
  // Both replay {a, b}. The first is late for b by 2 s, then the second for a, and so on: the last
  // reports of both always name the other rank and another call.
  World world(2);
  const Call a = all_reduce(1), b = all_reduce(2);
  for (int rank : {0, 1})
    for (const Call& call : {a, b}) world.capture(rank, call);
  for (int round = 0; round < 20; ++round) {
    world.wait_for(seconds(2), [&](int repeats) { world.wait(1, 0, b, repeats); });
    world.wait_for(seconds(2), [&](int repeats) { world.wait(0, 1, a, repeats); });
  }
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, DoesNotAccuseOperationsThatShareALaunch) {
  // Two collectives in one launch; a third rank is late for both.
  World world(3);
  const Call a = all_reduce(1), b = all_reduce(2);
  for (int rank : {0, 1}) world.of(rank).log.add(std::array{a, b}, /*is_captured=*/true);
  world.call(2, all_reduce(77));
  world.wait_for(seconds(40), [&](int repeats) {
    world.wait(0, 1, a, repeats);
    world.wait(1, 0, b, repeats);
  });
  EXPECT_EQ(world.failure(), "");
  EXPECT_THAT(log::last_error(),
              AllOf(HasSubstr("ranks wait for each other while there is rank 2, whose last call "
                              "was ncclAllReduce(count 77, float, sum)")));
}

TEST(Watch, DoesNotAccuseMessagesInOneLaunch) {
  // Each sends to the other in one group, of different sizes; slow, but right.
  World world(2);
  for (int rank : {0, 1}) {
    world.call(rank, send(1 - rank, 10 + static_cast<size_t>(rank)));
    world.call(rank, receive(1 - rank, 11 - static_cast<size_t>(rank)));
  }
  world.wait_for(seconds(20), [&](int repeats) {
    world.wait(0, 1, receive(1, 11), repeats);
    world.wait(1, 0, receive(0, 10), repeats);
  });
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, NamesSendsThatWaitForEachOther) {
  // Without a group; the receives come behind, and earlier messages of that size were no matter.
  for (bool is_captured : {false, true}) {
    World world(2);
    for (int rank : {0, 1}) {
      for (const Call& call : {send(1 - rank, 10), receive(1 - rank, 10), send(1 - rank, 10)})
        world.of(rank).log.add({&call, 1}, is_captured);
    }
    world.wait_for(executor::kReportInterval, [&](int repeats) {
      for (int rank : {0, 1})
        world.wait(rank, 1 - rank, send(1 - rank, 10), repeats, ReportKind::WaitingForCredit);
    });
    ASSERT_FALSE(world.failures().empty());
    EXPECT_EQ(world.failures()[0].code(), Code::InvalidUsage);
    EXPECT_THAT(world.failure(),
                AllOf(HasSubstr("rank 0 waits in ncclSend(count 10, float, peer 1)"),
                      HasSubstr("rank 1 waits in ncclSend(count 10, float, peer 0)"),
                      HasSubstr("none can go on")));
  }
}

TEST(Watch, NamesAllRanksOfARingOfSends) {
  World world(4);
  for (int rank = 0; rank < 4; ++rank) world.call(rank, send((rank + 1) % 4, 10));
  world.wait_for(executor::kReportInterval, [&](int repeats) {
    for (int rank = 0; rank < 4; ++rank)
      world.wait(rank, (rank + 1) % 4, send((rank + 1) % 4, 10), repeats);
  });
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(world.failure(), HasSubstr(fmt::format("rank {} waits in ncclSend", rank)));
}

TEST(Watch, DoesNotAccuseTheTwoEndsOfASlowMessage) {
  // Sends and receives of one size, one after the other: what waits are two ends of one message.
  World world(2);
  for (int round = 0; round < 3; ++round)
    for (int rank : {0, 1})
      for (const Call& call : {send(1 - rank, 10), receive(1 - rank, 10)}) world.call(rank, call);
  world.wait_for(seconds(20), [&](int repeats) {
    world.wait(0, 1, send(1, 10), repeats, ReportKind::WaitingForCredit);
    world.wait(1, 0, receive(0, 10), repeats, ReportKind::WaitingForData);
  });
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, DoesNotAccuseMessagesWhoseDirectionItDoesNotKnow) {
  World world(2);
  for (int rank : {0, 1})
    for (const Call& call : {send(1 - rank, 10), receive(1 - rank, 10)}) world.call(rank, call);
  world.wait_for(seconds(20), [&](int repeats) {
    for (int rank : {0, 1}) world.wait(rank, 1 - rank, send(1 - rank, 10), repeats);
  });
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, DoesNotAccuseMessagesThatWaitInTurn) {
  // Each sends first in turn, and the other one is late by 2 s.
  World world(2);
  for (int round = 0; round < 20; ++round) {
    for (const int late : {0, 1}) {
      const int early = 1 - late;
      world.call(early, send(late, 10));
      world.wait_for(seconds(2), [&](int repeats) {
        world.wait(early, late, send(late, 10), repeats, ReportKind::WaitingForCredit);
      });
      world.call(late, receive(early, 10));
    }
  }
  EXPECT_EQ(world.failure(), "");
}

TEST(Watch, FindsDifferencesThatNobodyWaitsFor) {
  // Each rank takes itself for the root and has nothing to wait for.
  World world(2);
  world.call(0, broadcast(8, 0));
  world.call(1, broadcast(8, 1));
  world.pass(seconds(2));
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("root 0"), HasSubstr("root 1")));
}

TEST(Watch, AsksIdleRanksNothing) {
  World world(4);
  world.call_all(all_reduce(1));
  world.pass(seconds(2));
  const int asked = world.of(2).asked;
  EXPECT_EQ(asked, 1);
  world.pass(seconds(600));
  EXPECT_EQ(world.of(2).asked, asked);
}

TEST(Watch, AComparisonThatFailedIsMadeLater) {
  World world(2);
  world.call(0, broadcast(8, 0));
  world.call(1, broadcast(8, 1));
  for (int rank : {0, 1}) world.of(rank).is_unreachable = true;
  world.pass(seconds(10));
  EXPECT_EQ(world.failure(), "");
  for (int rank : {0, 1}) world.of(rank).is_unreachable = false;
  world.pass(seconds(31));
  EXPECT_THAT(world.failure(), HasSubstr("root 1"));
}

TEST(Watch, ARankThatHasLeftIsWaitedForInVain) {
  World world(2);
  world.call(0, all_reduce(1));
  world.pass(seconds(1));
  world.wait(0, 1, all_reduce(1));  // before it left
  world.of(1).has_left = true;
  world.pass(milliseconds(500));
  EXPECT_EQ(world.failure(), "") << "what it sent last may just have arrived";
  world.wait(0, 1, all_reduce(1), 1);
  world.pass(milliseconds(50));
  ASSERT_EQ(world.failures().size(), 1u);
  EXPECT_EQ(world.failures()[0].code(), Code::RemoteError);
  EXPECT_THAT(world.failure(), AllOf(HasSubstr("rank 0 waits in ncclAllReduce(count 1,"),
                                     HasSubstr("rank 1, which has left")));
}

TEST(Watch, ARankThatHasLeftIsNamedWithTheFailureOfItsConnection) {
  World world(2);
  world.call(0, all_reduce(1));
  world.of(0).network.emplace().peers.push_back({.peer = 1, .broken = "the cable is cut"});
  world.of(1).has_left = true;
  for (const int repeats : {0, 1}) {
    world.wait(0, 1, all_reduce(1), repeats);
    world.pass(milliseconds(500));
  }
  EXPECT_THAT(world.failure(), HasSubstr("without taking part; the cable is cut"));
}

// Each of the two waits for the third one, too, and reports only the other.
TEST(Watch, ACircleOfWaitsNamesARankThatHasLeft) {
  for (const Call& call : {all_reduce(1), broadcast(1, 2)}) {
    World world(3);
    world.call_all(call);
    world.of(2).has_left = true;
    world.wait_for(seconds(12), [&](int repeats) {
      world.wait(0, 1, call, repeats);
      world.wait(1, 0, call, repeats);
    });
    if (call.request.collective == calls::Collective::Broadcast) {
      EXPECT_EQ(world.failure(), "") << "its root may have left in order";
    } else {
      EXPECT_THAT(world.failure(), HasSubstr("in ncclAllReduce(count 1, float, sum), from which "
                                             "rank 2 is missing: it has left"));
    }
  }
}

TEST(Watch, OneSidedWorkWaitsInVainForARankThatHasLeft) {
  World world(2);
  world.of(0).awaited_leaver = {1, "ncclWaitSignal"};
  world.pass(milliseconds(500));
  EXPECT_EQ(world.failure(), "") << "what it sent last may just arrive";
  world.pass(seconds(2));
  ASSERT_EQ(world.failures().size(), 1u);
  EXPECT_EQ(world.failures()[0].code(), Code::RemoteError);
  EXPECT_THAT(world.failure(),
              HasSubstr("rank 0 waits in ncclWaitSignal for rank 1, which has left"));
}

TEST(Watch, FindsDifferencesBeforeTheFirstRankLeaves) {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) world.call(rank, broadcast(8, rank));
  EXPECT_THAT(world.leave(0), AllOf(HasSubstr("root 0"), HasSubstr("rank 0 called")));
}

TEST(Watch, TheFirstThatLeavesIsComparedWithWhatOthersCallLater) {
  World world(3);
  world.call(0, broadcast(8, 0));
  EXPECT_EQ(world.leave(0), "");
  world.call(1, broadcast(8, 1));
  EXPECT_THAT(world.leave(1), AllOf(HasSubstr("root 0"), HasSubstr("root 1")));
}

TEST(Watch, WhatOnlyOneRankCalledIsFoundWhenBothHaveEnded) {
  World world(2);
  world.call_all(all_reduce(1));
  EXPECT_EQ(world.leave(1), "") << "the other may call as much as it has, later";
  world.call(0, broadcast(8, 0));
  EXPECT_THAT(world.leave(0), AllOf(HasSubstr("rank 0 called ncclBroadcast(count 8, float, root 0) "
                                              "as its collective #2, which rank 1 did not"),
                                    HasSubstr("after 1 collectives")));
}

TEST(Watch, RanksThatHaveMadeTheSameCallsLeaveInAnyOrder) {
  World world(4);
  for (const int rank : {2, 0, 3, 1}) {
    for (size_t count : {5u, 6u}) world.call(rank, all_reduce(count));
    EXPECT_EQ(world.leave(rank), "") << rank;
  }
}

TEST(Watch, RanksThatReplayWhatOthersCallLeave) {
  World world(2);
  world.capture(0, all_reduce(1));
  for (int i = 0; i < 3; ++i) world.call(1, all_reduce(1));
  for (const int rank : {0, 1}) EXPECT_EQ(world.leave(rank), "") << rank;
}

TEST(Watch, ANeighborThatDoesNotAnswerHoldsUpNobody) {
  World world(3);
  world.call_all(all_reduce(1));
  world.of(1).is_unreachable = true;
  EXPECT_EQ(world.leave(0), "");
}

TEST(Watch, IgnoresReportsOfRanksThatDoNotExist) {
  World world(2);
  for (int peer : {0, 2, 0xffffff}) {
    world.wait(0, peer, all_reduce(1));
    world.pass(milliseconds(50));
    world.mismatch(0, peer, all_reduce(1), all_reduce(2));
    world.pass(milliseconds(50));
  }
  EXPECT_EQ(world.failure(), "");
}

}  // namespace
}  // namespace niccolite::diagnosis
