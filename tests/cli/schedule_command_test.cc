// The command `niccolite schedule`, run as users run it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

Outcome schedule(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {NICCOLITE_COMMAND, "schedule"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return testing::run_command(arguments, {});
}

/// Collective and algorithm, of every line of --list that names algorithms.
std::vector<std::pair<std::string, std::string>> listed() {
  std::vector<std::pair<std::string, std::string>> result;
  std::istringstream lines(schedule({"--list"}).output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string collective, algorithm;
    words >> collective;
    if (collective == "point_to_point") continue;
    while (words >> algorithm) {
      if (algorithm.back() == ',') algorithm.pop_back();
      result.emplace_back(collective, algorithm);
    }
  }
  return result;
}

TEST(ScheduleCommand, ProvesEverythingThatItLists) {
  const auto all = listed();
  ASSERT_GE(all.size(), 21u);
  for (const auto& [collective, algorithm] : all) {
    const Outcome outcome = schedule({collective, "-a", algorithm, "-n", "5", "--check"});
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr(collective + " " + algorithm + ": 5 ranks"),
                                      HasSubstr("proved right"), HasSubstr("rank 4, channel 0")));
  }
}

TEST(ScheduleCommand, PrintsTheTextAndTheCost) {
  const Outcome outcome = schedule({"broadcast", "--ranks", "3", "--root", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_EQ(outcome.output,
            R"(broadcast ring: 3 ranks, root 2, 1 block, 2 connections
rank 0, channel 0, lane 0
  0  block 0  rank 2  -> output, rank 1
rank 1, channel 0, lane 0
  0  block 0  rank 0  -> output
rank 2, channel 0, lane 0
  0  block 0  input  -> output, rank 0

broadcast ring: 3 ranks, root 2, 1 block; 3 steps, 2 network latencies; ranks send 0 to 1 times the data; 1 instruction per rank
)");
}

TEST(ScheduleCommand, WritesAPictureInsteadOfTheText) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("schedule_test_" + std::to_string(getpid()) + ".svg");
  const Outcome outcome = schedule({"all_gather", "-a", "pat", "-n", "8", "--svg", path});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("3 network latencies"), Not(HasSubstr("channel 0, lane"))));
  std::ifstream file(path);
  const std::string picture{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(picture, AllOf(HasSubstr("<svg xmlns="), HasSubstr("</svg>")));
  std::filesystem::remove(path);
}

TEST(ScheduleCommand, TakesMessages) {
  const Outcome some = schedule({"point_to_point", "-n", "3", "-m", "0:1,2:2", "-c"});
  EXPECT_EQ(some.status, 0) << some.errors;
  EXPECT_THAT(some.output, AllOf(HasSubstr("3 ranks, 2 messages"), HasSubstr("proved right")));
  const Outcome all = schedule({"point_to_point", "-n", "3", "-c"});
  EXPECT_THAT(all.output, HasSubstr("3 ranks, 9 messages"));
}

TEST(ScheduleCommand, SaysWhatIsWrong) {
  const Outcome shallow = schedule({"all_reduce", "-a", "ring", "--depth", "1", "--check"});
  EXPECT_EQ(shallow.status, 1);
  EXPECT_THAT(shallow.errors, HasSubstr("deadlock with FIFOs of 1 slot"));

  struct Case {
    std::vector<std::string> flags;
    const char* message;
  };
  for (const Case& c :
       {Case{{}, "which collective?"}, Case{{"all_dance"}, "\"all_dance\" is no collective"},
        Case{{"gather", "-a", "ring"}, "--algorithm: \"ring\" is none of direct"},
        Case{{"all_reduce", "-n", "0"}, "ranks, not 0"},
        Case{{"reduce", "-r", "4"}, "the root cannot be rank 4 of 4"},
        Case{{"all_reduce", "-r", "1"}, "--root: all_reduce has none"},
        Case{{"all_reduce", "-m", "0:1"}, "--messages are for point_to_point"},
        Case{{"point_to_point", "-m", "0-1"}, "no list of SENDER:RECEIVER"},
        Case{{"point_to_point", "-m", "0:1,"}, "no list of SENDER:RECEIVER"},
        Case{{"point_to_point", "-m", "0:9"}, "a message goes from rank 0 to rank 9 of 4"},
        Case{{"point_to_point", "-n", "-3"}, "ranks, not -3"},
        Case{{"point_to_point", "-n", "1000000"}, "--ranks: 1000000 are too many"}}) {
    const Outcome outcome = schedule(c.flags);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
  const Outcome unwritable = schedule({"all_reduce", "--svg", "/nonexistent/x.svg"});
  EXPECT_EQ(unwritable.status, 3);
  EXPECT_THAT(unwritable.errors, HasSubstr("/nonexistent/x.svg cannot be written"));
}

TEST(ScheduleCommand, HelpHasExamples) {
  const Outcome outcome = schedule({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--svg"), HasSubstr("Examples:")));
}

}  // namespace
}  // namespace niccolite
