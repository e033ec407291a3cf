// Whom a rank that leaves waits for no longer.
#include "bootstrap/absences.h"

#include <gtest/gtest.h>

#include <map>

namespace niccolite::bootstrap {
namespace {

using std::chrono::milliseconds;

class AbsencesOfThree : public testing::Test {
 protected:
  Absences::Clock::time_point now{std::chrono::hours(1)};
  std::map<uint32_t, RunState> states{
      {0, RunState::Runs}, {1, RunState::Stopped}, {2, RunState::Unknown}};
  int described = 0;
  Absences absences{{.is_visible = [](uint32_t process) { return process != 2; },
                     .run_state = [this](uint32_t process) { return states[process]; },
                     .describe =
                         [this](uint32_t process) {
                           ++described;
                           return "process number " + std::to_string(process);
                         },
                     .now = [this] { return now; }}};
};

TEST_F(AbsencesOfThree, AreOfProcessesThatHaveBeenStoppedForLong) {
  EXPECT_FALSE(absences.is_absent(1));
  now += Absences::kLong - milliseconds(1);
  EXPECT_FALSE(absences.is_absent(1));
  EXPECT_FALSE(absences.are_there());
  now += Absences::kLookInterval;
  EXPECT_TRUE(absences.is_absent(1));
  EXPECT_TRUE(absences.are_there());
  EXPECT_FALSE(absences.is_absent(0));
  EXPECT_FALSE(absences.is_absent(2));
  EXPECT_EQ(described, 1) << "one line says so";
}

TEST_F(AbsencesOfThree, AreKnownToWhoIsSlowItself) {
  EXPECT_FALSE(absences.is_absent(1));
  now += 2 * Absences::kLong;
  EXPECT_TRUE(absences.is_absent(1));
}

TEST_F(AbsencesOfThree, EndWhenTheProcessGoesOn) {
  absences.is_absent(1);
  now += Absences::kLong;
  EXPECT_TRUE(absences.is_absent(1));
  states[1] = RunState::Runs;
  now += Absences::kLookInterval;
  EXPECT_FALSE(absences.is_absent(1));
  states[1] = RunState::Stopped;
  now += Absences::kLookInterval;
  EXPECT_FALSE(absences.is_absent(1)) << "stopped anew";
  now += Absences::kLong;
  EXPECT_TRUE(absences.is_absent(1));
  EXPECT_EQ(described, 1) << "it has been said";
}

// A thousand processes of one machine that wait for each other read /proc each.
TEST(Absences, LookAtFewProcessesAtATimeAndAtAllInTurn) {
  constexpr uint32_t kProcesses = 1000, kAsked = 100, kStopped = kAsked - 1;
  Absences::Clock::time_point now{std::chrono::hours(1)};
  std::map<uint32_t, size_t> looks;
  size_t looks_in_interval = 0;
  Absences absences{{.is_visible = [](uint32_t) { return true; },
                     .run_state =
                         [&](uint32_t process) {
                           ++looks[process];
                           ++looks_in_interval;
                           return process == kStopped ? RunState::Stopped : RunState::Runs;
                         },
                     .describe = [](uint32_t) { return std::string("somebody"); },
                     .now = [&] { return now; }}};
  // Two who wait ask by turns; what one has asked about and is done with costs nothing any more.
  const auto ask = [&](uint32_t processes) {
    looks_in_interval = 0;
    for (uint32_t process = 0; process < processes; ++process) absences.is_absent(process);
    for (uint32_t process = 0; process < processes; ++process) absences.is_absent(process);
    EXPECT_LE(looks_in_interval, Absences::kMostLooks);
    now += Absences::kLookInterval;
  };
  ask(kProcesses);
  now += Absences::kLong;
  looks.clear();
  constexpr size_t kTurn = (kAsked + Absences::kMostLooks - 1) / Absences::kMostLooks;
  for (size_t interval = 0; interval < kTurn; ++interval) ask(kAsked);
  EXPECT_EQ(looks.size(), kAsked) << "all have had their turn";
  EXPECT_EQ(looks[kAsked - 1], 1u);
  for (size_t interval = 0; interval < kTurn + Absences::kLong / Absences::kLookInterval;
       ++interval)
    ask(kAsked);
  EXPECT_TRUE(absences.is_absent(kStopped)) << "the last of those who are asked about";
  EXPECT_EQ(looks.size(), kAsked);
}

TEST_F(AbsencesOfThree, LookAtNoneThatIsNotAskedAbout) {
  absences.is_absent(0);
  now += Absences::kLong + Absences::kLookInterval;
  EXPECT_FALSE(absences.is_absent(1)) << "it may have been stopped just now";
}

TEST_F(AbsencesOfThree, OfOneThatDidNotAnswerLast) {
  absences.note_silent(2);
  EXPECT_TRUE(absences.is_absent(2));
  now += Absences::kLong;
  EXPECT_TRUE(absences.is_absent(2));
}

}  // namespace
}  // namespace niccolite::bootstrap
