#include "observe/recorder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace niccolite::observe {
namespace {

Event make_event(uint64_t number) {
  Event event;
  event.time = number;
  event.launch = number;
  event.number = number;
  event.value = ~number;
  event.stream = number;
  event.peer = static_cast<int32_t>(number);
  return event;
}

bool is_whole(const Event& event) {
  const uint64_t number = event.number;
  return event.time == number && event.launch == number && event.value == ~number &&
         event.stream == number && event.peer == static_cast<int32_t>(number);
}

TEST(Recorder, KeepsTheLastEventsInTheirOrder) {
  Recorder recorder;
  EXPECT_TRUE(recorder.events().empty());
  for (uint64_t number = 1; number <= 10; ++number) recorder.add(make_event(number));
  EXPECT_EQ(recorder.events().size(), 10u);
  for (uint64_t number = 11; number <= 3 * Recorder::kKept; ++number)
    recorder.add(make_event(number));
  const std::vector<Event> events = recorder.events();
  ASSERT_EQ(events.size(), Recorder::kKept);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].number, 2 * Recorder::kKept + 1 + i);
    EXPECT_TRUE(is_whole(events[i]));
  }
}

// Steps of proxies are many, and waits may go on for ever: calls stay.
TEST(Recorder, KeepsEachSubjectWhateverBecomesOfOthers) {
  Recorder recorder;
  recorder.add(make_event(1));
  Event captured = make_event(2);
  captured.number = 0;
  recorder.add_captured_call(2, captured);
  recorder.begin(1);
  for (const EventKind kind : {EventKind::Sent, EventKind::Received, EventKind::Waiting})
    for (uint64_t i = 0; i < 2 * Recorder::kKept; ++i) {
      Event event = make_event(3 + i);
      event.kind = kind;
      recorder.add(event);
    }
  size_t calls = 0, begun = 0;
  for (const Event& event : recorder.events()) {
    calls += event.kind == EventKind::Called ? 1 : 0;
    begun += event.kind == EventKind::Begun ? 1 : 0;
  }
  EXPECT_EQ(calls, 2u);
  EXPECT_EQ(begun, 1u);
}

TEST(Recorder, KeepsEqualCallsOfGraphsOnce) {
  Recorder recorder;
  uint64_t order = 0;
  for (int round = 0; round < 3; ++round)
    for (uint64_t count = 1; count <= 3; ++count) {
      Event event;
      event.value = count;
      event.launch = order + 1;
      recorder.add_captured_call(order++, event);
    }
  const auto calls = recorder.captured_calls();
  ASSERT_EQ(calls.size(), 3u);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].event.value, i + 1);
    EXPECT_EQ(calls[i].event.launch, 7 + i) << "the newest";
  }
}

TEST(Recorder, KnowsWhatHasBegunAndEnded) {
  Recorder recorder;
  EXPECT_EQ(recorder.progress().begun, 0u);
  for (int replay = 0; replay < 2; ++replay) {
    recorder.begin(7);
    EXPECT_EQ(recorder.progress().begun, 7u);
    EXPECT_TRUE(recorder.progress().is_running) << "replay " << replay;
    recorder.end(7);
    EXPECT_FALSE(recorder.progress().is_running);
  }
  ASSERT_EQ(recorder.events().size(), 4u);
  EXPECT_EQ(recorder.events()[1].kind, EventKind::Ended);
}

// Writers lap each other and the reader: what is read is whole, and of one writer in its order.
TEST(Recorder, GivesNoHalfEventsWhileThreadsWrite) {
  constexpr uint64_t kWriters = 3, kEach = 100'000;
  Recorder recorder;
  std::atomic<uint64_t> running = kWriters;
  std::vector<std::thread> writers;
  for (uint64_t writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer] {
      for (uint64_t i = 0; i < kEach; ++i) recorder.add(make_event(writer * kEach + i));
      --running;
    });
  size_t seen = 0;
  while (running > 0 || seen == 0) {
    std::array<uint64_t, kWriters> last{};
    for (const Event& event : recorder.events()) {
      ASSERT_TRUE(is_whole(event)) << event.number;
      uint64_t& before = last[event.number / kEach];
      EXPECT_GE(event.number, before);
      before = event.number;
      ++seen;
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(recorder.events().size(), Recorder::kKept / 2);
}

// By a time server's first step, or where a machine goes on after a pause.
TEST(Clock, MeasuresAsBeforeWhereTheHostsIsSet) {
  constexpr int64_t kHour = 3'600'000'000'000;
  constexpr uint64_t kStart = 1'700'000'000'000'000'000;
  const Clock::Moment first{.ticks = 1000, .monotonic = 5'000'000, .nanoseconds = kStart};
  for (const int64_t step : {-kHour, int64_t{0}, kHour}) {
    const Clock clock(first, {.ticks = 1000 + 3'000'000,
                              .monotonic = first.monotonic + 1'000'000,
                              .nanoseconds = kStart + 1'000'000 + static_cast<uint64_t>(step)});
    EXPECT_DOUBLE_EQ(clock.ticks_per_nanosecond(), 3);
    EXPECT_EQ(clock.nanoseconds(1000 + 3'000'000),
              kStart + 1'000'000 + static_cast<uint64_t>(step));
    EXPECT_EQ(clock.nanoseconds(1000 + 3'000'000) - clock.nanoseconds(1000), 1'000'000u);
  }
}

TEST(Clock, AgreesWithTheHost) {
  Clock::begin();
  const auto host_now = [] {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  };
  const uint64_t before = host_now();
  const uint64_t middle = ticks();
  const uint64_t after = host_now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Clock clock;
  constexpr uint64_t kError = 1'000'000;  // ns: somebody may interrupt the comparison
  EXPECT_GE(clock.nanoseconds(middle) + kError, before);
  EXPECT_LE(clock.nanoseconds(middle), after + kError);
}

}  // namespace
}  // namespace niccolite::observe
