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
  Absences absences{{.nprocesses = [] { return 3u; },
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

TEST_F(AbsencesOfThree, OfOneThatDidNotAnswerLast) {
  absences.note_silent(2);
  EXPECT_TRUE(absences.is_absent(2));
  now += Absences::kLong;
  EXPECT_TRUE(absences.is_absent(2));
}

}  // namespace
}  // namespace niccolite::bootstrap
