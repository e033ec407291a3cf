// The command `niccolite schedule`, run as users run it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
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
rank 0, channel 0, worker 0
  0  block 0  rank 2  -> output, rank 1
rank 1, channel 0, worker 0
  0  block 0  rank 0  -> output
rank 2, channel 0, worker 0
  0  block 0  input  -> output, rank 0

broadcast ring: 3 ranks, root 2, 1 block; 3 steps, 2 network latencies; ranks send 0 to 1 times the data; 1 instruction per rank
)");
}

std::string picture_of(const std::vector<std::string>& flags) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("schedule_test_" + std::to_string(getpid()) + ".svg");
  std::vector<std::string> arguments = flags;
  arguments.insert(arguments.end(), {"--svg", path});
  const Outcome outcome = schedule(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  std::ifstream file(path);
  std::string picture{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  return picture;
}

struct Point {
  double x, y;
};

/// The middles of boxes, which are 44 wide and 24 high.
std::vector<Point> boxes_of(const std::string& picture) {
  std::vector<Point> boxes;
  static const std::regex kBox(R"re(<rect x="([\d.]+)" y="([\d.]+)" width="44.0" height="24.0")re");
  for (std::sregex_iterator it(picture.begin(), picture.end(), kBox), end; it != end; ++it)
    boxes.push_back({std::stod((*it)[1]) + 22, std::stod((*it)[2]) + 12});
  return boxes;
}

/// Points on the lines of arrows: curves, and straight lines downward.
std::vector<Point> points_on_arrows(const std::string& picture) {
  std::vector<Point> points;
  static const std::regex kLine(R"re(<path d="(M[^"]*C[^"]*)"/>)re"), kPart("([MCV])([^MCV]*)");
  for (std::sregex_iterator line(picture.begin(), picture.end(), kLine), end; line != end; ++line) {
    const std::string path = (*line)[1];
    Point at{};
    for (std::sregex_iterator part(path.begin(), path.end(), kPart); part != end; ++part) {
      std::istringstream text((*part)[2]);
      std::vector<double> numbers{std::istream_iterator<double>(text), {}};
      if ((*part)[1] == "M") {
        at = {numbers[0], numbers[1]};
      } else if ((*part)[1] == "V") {
        for (double y = at.y; y < numbers[0]; y += 4) points.push_back({at.x, y});
        at.y = numbers[0];
      } else {
        for (double t = 0; t <= 1; t += 0.02) {
          const double a = (1 - t) * (1 - t) * (1 - t), b = 3 * t * (1 - t) * (1 - t),
                       c = 3 * t * t * (1 - t), d = t * t * t;
          points.push_back({a * at.x + b * numbers[0] + c * numbers[2] + d * numbers[4],
                            a * at.y + b * numbers[1] + c * numbers[3] + d * numbers[5]});
        }
        at = {numbers[4], numbers[5]};
      }
    }
  }
  return points;
}

TEST(ScheduleCommand, DrawsNoLineAcrossABox) {
  for (const auto& [collective, algorithm] : listed()) {
    SCOPED_TRACE(collective + " " + algorithm);
    for (const char* ranks : {"4", "8", "16"}) {
      if (std::stoi(ranks) > 8 && algorithm.ends_with("_workers")) continue;
      const std::string picture = picture_of({collective, "-a", algorithm, "-n", ranks});
      const std::vector<Point> boxes = boxes_of(picture);
      ASSERT_FALSE(boxes.empty());
      size_t inside = 0;
      for (const Point& point : points_on_arrows(picture))
        for (const Point& box : boxes)
          inside += std::abs(point.x - box.x) < 21 && std::abs(point.y - box.y) < 11;
      EXPECT_EQ(inside, 0u) << ranks << " ranks";
    }
  }
}

TEST(ScheduleCommand, NamesTheChunkAtBothEdgesThatALineGoesOver) {
  const std::string picture = picture_of({"all_gather", "-a", "pat", "-n", "8"});
  // Pat's rank 0 sends six of its eight chunks to rank 7, by the left edge and the right one.
  const std::regex label(R"re(fill-opacity="0.9"/><text x="([\d.]+)")re");
  int left = 0, right = 0;
  for (std::sregex_iterator it(picture.begin(), picture.end(), label), end; it != end; ++it) {
    left += std::stod((*it)[1]) < 56;
    right += std::stod((*it)[1]) > 896;
  }
  EXPECT_GT(left, 0);
  EXPECT_EQ(left, right);
  const std::regex wrapped("rank 0 step \\d+ to rank 7 step");
  EXPECT_EQ(left, std::distance(std::sregex_iterator(picture.begin(), picture.end(), wrapped), {}));
}

TEST(ScheduleCommand, DrawsOnceWhatManyRanksRepeat) {
  const std::string ring = picture_of({"all_reduce", "-n", "1024"});
  EXPECT_LT(ring.size(), 50'000u);
  EXPECT_THAT(
      ring,
      AllOf(HasSubstr("4 of 1024 ranks are shown: ranks 3 to 1022 are as rank 2, peers and "
                      "blocks counted on"),
            HasSubstr("steps 3 to 1021, as step 2"), HasSubstr("steps 1026 to 2044, as step 1025"),
            HasSubstr(">rank 1023</text>"), Not(HasSubstr(">rank 3</text>"))));
  EXPECT_THAT(picture_of({"broadcast", "-n", "40", "-r", "7"}),
              AllOf(HasSubstr("are as rank"), HasSubstr(">rank 7</text>"), HasSubstr(">root<")));
  for (const auto& [collective, algorithm] : listed()) {
    if (algorithm.ends_with("_workers")) continue;  // of up to 8 ranks
    const std::string picture = picture_of({collective, "-a", algorithm, "-n", "64"});
    EXPECT_LT(picture.size(), 300'000u) << collective << " " << algorithm;
    EXPECT_THAT(picture, HasSubstr(" of 64 ranks are shown: ")) << collective << " " << algorithm;
  }
  EXPECT_THAT(picture_of({"all_reduce", "-n", "8"}), Not(HasSubstr("are shown")));
}

TEST(ScheduleCommand, WritesAPictureInsteadOfTheText) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("schedule_test_" + std::to_string(getpid()) + ".svg");
  const Outcome outcome = schedule({"all_gather", "-a", "pat", "-n", "8", "--svg", path});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("3 network latencies"), Not(HasSubstr("channel 0, worker"))));
  std::ifstream file(path);
  const std::string picture{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(picture, AllOf(HasSubstr("<svg xmlns="), HasSubstr("</svg>")));
  std::filesystem::remove(path);
}

TEST(ScheduleCommand, PrintsAndProvesHowTheBytesGo) {
  const Outcome outcome =
      schedule({"reduce", "-a", "two_shot_workers", "-n", "2", "--lowered", "--check"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("connections of tag 0: get\nconnections of tag 1: put, final\n"),
                    HasSubstr("threads, dynamic tiles\n  take advertisement  rank 0/1\n"),
                    HasSubstr("proved right lowered, too, whichever buffers are reached, and "
                              "whenever a rank is aborted")));
}

TEST(ScheduleCommand, PrintsHowATeamReachesWindows) {
  const std::vector<std::string> of_team = {"all_reduce", "-a",    "two_shot_workers", "-n", "2",
                                            "--lowered",  "--team"};
  EXPECT_THAT(schedule(of_team).output,
              AllOf(HasSubstr("rank 1 (team load)"), HasSubstr("rank 1 (team store)")));
  std::vector<std::string> on_windows = of_team;
  on_windows.emplace_back("--windows");
  EXPECT_THAT(schedule(on_windows).output,
              AllOf(HasSubstr("finish(input 0 + rank 1 (team get)) -> output 0, rank 1 (team put)"),
                    Not(HasSubstr("await credit"))));
  EXPECT_THAT(schedule({"all_reduce", "--lowered", "--windows"}).errors,
              HasSubstr("--windows is about what a team reaches: add --team"));
}

TEST(ScheduleCommand, PrintsHowWordsGoByATeam) {
  const std::vector<std::string> words = {"all_reduce", "-a",        "one_shot", "-n",
                                          "3",          "--lowered", "--words"};
  EXPECT_THAT(schedule(words).output, Not(HasSubstr("team")));
  std::vector<std::string> by_team = words;
  by_team.emplace_back("--team");
  EXPECT_THAT(schedule(by_team).output,
              AllOf(HasSubstr("-> rank 1 (team store), rank 2 (team store)"),
                    HasSubstr("for each byte of the operation: 3 by the team, 0 from rank")));
  EXPECT_THAT(schedule({"all_reduce", "--words"}).errors,
              HasSubstr("--words is about --lowered steps without --windows"));
}

// The page has the file of the schedule and the step of every instruction, and loads nothing.
TEST(ScheduleCommand, WritesAPageThatPlaysIt) {
  const Outcome page = schedule({"all_reduce", "-a", "ring", "-n", "3", "--animate", "-"});
  EXPECT_EQ(page.status, 0) << page.errors;
  const std::string file = schedule({"all_reduce", "-a", "ring", "-n", "3", "--json"}).output;
  EXPECT_THAT(page.output, AllOf(::testing::StartsWith("<!DOCTYPE html>"), HasSubstr(file),
                                 HasSubstr("[0,0,0,0,0]"), Not(HasSubstr("http")),
                                 Not(HasSubstr("src=")), Not(HasSubstr("@"))));
  const std::regex event("\\[[0-9]+,[0-2],0,0,[0-4]\\]");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.output.begin(), page.output.end(), event), {}),
            15)
      << "five instructions of three ranks";
  const Outcome large = schedule({"all_reduce", "-a", "ring", "-n", "65", "--animate", "-"});
  EXPECT_EQ(large.status, 3);
  EXPECT_THAT(large.errors, HasSubstr("at most 64 ranks, not 65"));
}

TEST(ScheduleCommand, TakesMessages) {
  const Outcome some = schedule({"point_to_point", "-n", "3", "-m", "0:1,2:2", "-c"});
  EXPECT_EQ(some.status, 0) << some.errors;
  EXPECT_THAT(some.output, AllOf(HasSubstr("3 ranks, 2 messages"), HasSubstr("proved right")));
  const Outcome all = schedule({"point_to_point", "-n", "3", "-c"});
  EXPECT_THAT(all.output, HasSubstr("3 ranks, 9 messages"));
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ScheduleCommand, WritesFilesThatItReadsBack) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("schedules." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string first = folder / "first.json", second = folder / "second.json";
  for (const auto& [collective, algorithm] : listed()) {
    SCOPED_TRACE(collective + " " + algorithm);
    const Outcome written = schedule({collective, "-a", algorithm, "-n", "6", "-o", first});
    ASSERT_EQ(written.status, 0) << written.errors;
    const Outcome read = schedule({"--import", first, "-o", second});
    ASSERT_EQ(read.status, 0) << read.errors;
    EXPECT_THAT(read.output, AllOf(HasSubstr(collective + " " + algorithm + ": 6 ranks"),
                                   HasSubstr("proved right"), HasSubstr("slot")));
    EXPECT_EQ(content_of(second), content_of(first));
    EXPECT_EQ(schedule({collective, "-a", algorithm, "-n", "6", "--json"}).output,
              content_of(first));
  }
  std::filesystem::remove_all(folder);
}

TEST(ScheduleCommand, SaysWhatIsWrongWithAFile) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("schedules." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "x.json";
  const auto imported = [&](const std::string& text) {
    std::ofstream(path) << text;
    return schedule({"--import", path});
  };
  const std::string ring = schedule({"all_reduce", "-a", "ring", "-n", "3", "--json"}).output;
  const Outcome torn = imported(ring.substr(0, ring.size() / 2));
  EXPECT_EQ(torn.status, 2);
  EXPECT_THAT(torn.errors, AllOf(HasSubstr(path), HasSubstr("line ")));
  const Outcome wrong = imported(std::regex_replace(ring, std::regex("\"finish\": true, "), "",
                                                    std::regex_constants::format_first_only));
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.errors, AllOf(HasSubstr(path), HasSubstr("rank 0")));
  const Outcome twice = schedule({"all_reduce", "--import", path});
  EXPECT_EQ(twice.status, 2);
  EXPECT_THAT(twice.errors, HasSubstr("the file says collective"));
  std::filesystem::remove_all(folder);
  const Outcome missing = schedule({"--import", path});
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.errors, HasSubstr("cannot read " + path + ": No such file"));
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
       {Case{{}, "which collective?"}, Case{{"all_dance"}, "\"all_dance\" is none of all_reduce"},
        Case{{"gather", "-a", "ring"},
             "--algorithm: \"ring\" is none of direct, direct_workers, pat"},
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
  EXPECT_THAT(unwritable.errors, HasSubstr("cannot write /nonexistent/x.svg"));
}

TEST(ScheduleCommand, HelpHasExamples) {
  const Outcome outcome = schedule({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--svg"), HasSubstr("Examples:")));
}

}  // namespace
}  // namespace niccolite
