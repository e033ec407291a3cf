// Who comes late to collectives, how often and how much, from what each rank's event ring has.
#include "diagnosis/stragglers.h"

#include <gmock/gmock.h>

#include "observe/clock.h"
#include "schedule/schedule.h"

namespace niccolite::diagnosis {
namespace {

using observe::Event;
using observe::EventKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kStart = 1'000'000'000'000;

Arrivals arrivals(std::vector<std::pair<uint64_t, uint64_t>> of) {
  Arrivals result;
  for (const auto& [number, microseconds] : of)
    result.collectives.push_back({.number = number, .time = kStart + microseconds * 1000});
  return result;
}

TEST(Stragglers, CountTheTimeFromTheFirstArrivalToEach) {
  Stragglers stragglers(3);
  const std::vector<Arrivals> of_ranks{arrivals({{1, 0}, {2, 1000}, {3, 2000}}),
                                       arrivals({{1, 5}, {2, 1250}, {3, 2000}}),
                                       arrivals({{1, 20'000}, {2, 1010}, {3, 2050}})};
  stragglers.add(of_ranks);
  EXPECT_EQ(stragglers.operations(), 3u);
  EXPECT_EQ(stragglers.counted(), 3u);
  const auto ranks = stragglers.of_ranks();
  EXPECT_THAT(ranks[0].bins, ElementsAre(3, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(ranks[1].bins, ElementsAre(2, 0, 1, 0, 0, 0, 0));
  EXPECT_THAT(ranks[2].bins, ElementsAre(0, 2, 0, 0, 1, 0, 0));
  EXPECT_EQ(ranks[2].times_last, 1u);  // of the third it was the last by 50 us: not worth telling
  EXPECT_EQ(ranks[2].worst, 20'000'000u);
  EXPECT_EQ(ranks[2].worst_number, 1u);
  EXPECT_EQ(stragglers.describe(0xabc),
            "communicator 0xabc: rank 2 came last to 1 of 3 collectives, 20.0 ms after the first "
            "rank on average, 20.0 ms at most (collective #1)\n"
            "communicator 0xabc: rank 1 came last to 1 of 3 collectives, 250 us after the first "
            "rank on average, 250 us at most (collective #2)\n");
}

TEST(Stragglers, CountWhatAllRanksHaveAndNothingTwice) {
  Stragglers stragglers(2);
  stragglers.add(std::vector{arrivals({{4, 0}, {5, 10}}), arrivals({{5, 20}, {6, 30}})});
  EXPECT_EQ(stragglers.operations(), 1u);
  stragglers.add(std::vector{arrivals({{5, 10}, {6, 40}}), arrivals({{5, 20}, {6, 30}})});
  EXPECT_EQ(stragglers.operations(), 2u);
  EXPECT_THAT(stragglers.describe(1), IsEmpty());
}

TEST(Arrivals, AreThoseOfTheStreamWhereItTellsAndElseOfTheHost) {
  observe::Recorder tells, does_not;
  for (uint64_t number = 1; number <= 3; ++number) {
    Event called;
    called.time = observe::ticks();
    called.launch = number;
    called.number = number;
    called.kind = EventKind::Called;
    tells.add(called);
    does_not.add(called);
    if (number < 3) tells.begin(number);
  }
  EXPECT_EQ(arrivals_of(does_not, 0).collectives.size(), 3u);
  EXPECT_EQ(arrivals_of(does_not, 2).collectives.size(), 1u);
  const Arrivals begun = arrivals_of(tells, 0);
  ASSERT_EQ(begun.collectives.size(), 2u);  // the third has been called, and has not begun
  EXPECT_GT(begun.collectives[0].time, arrivals_of(does_not, 0).collectives[0].time);
}

TEST(Arrivals, LeaveOutMessagesAndGraphs) {
  observe::Recorder recorder;
  Event event;
  event.kind = EventKind::Called;
  event.launch = 1;
  recorder.add(event);  // in a graph: no number
  event.number = 1;
  event.collective = static_cast<uint8_t>(schedule::Collective::PointToPoint);
  recorder.add(event);
  EXPECT_THAT(arrivals_of(recorder, 0).collectives, IsEmpty());
}

TEST(Arrivals, TravelAndRefuseWhatNoRankSends) {
  const Arrivals sent = arrivals({{7, 1}, {9, 2}});
  const Result<Arrivals> received = Arrivals::decode(sent.encode(), 1);
  ASSERT_TRUE(received.is_ok());
  EXPECT_EQ(received.value().collectives[1].number, 9u);
  EXPECT_THAT(Arrivals::decode(arrivals({{9, 1}, {9, 2}}).encode(), 1).status().message(),
              HasSubstr("out of order"));
  Bytes cut = sent.encode();
  cut.pop_back();
  EXPECT_FALSE(Arrivals::decode(cut, 1).is_ok());
}

}  // namespace
}  // namespace niccolite::diagnosis
