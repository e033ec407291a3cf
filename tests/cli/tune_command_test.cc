// The command `niccolite tune`, run as users run it, on virtual GPUs.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/tune/points.h"
#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;

// What a machine would show of two variants of all_reduce if it obeyed a model, but for a factor
// for each size.
void write_measurements(const std::string& path, const std::vector<double>& factors) {
  tune::Measurements measurements;
  measurements.devices = "2 x Test GPU";
  measurements.date = "2026-01-02T03:04:05Z";
  for (const char* const name : {"one_shot", "two_shot"}) {
    const tune::Form* const algorithm = planner::find_form(tune::Collective::AllReduce, name);
    size_t bytes = 8;
    for (const double factor : factors) {
      tune::Point point{.work = {tune::Collective::AllReduce, 2, bytes},
                        .variant = {algorithm, executor::Protocol::LL, 1, 1},
                        .chunk_bytes = 4 << 10};
      constexpr planner::Cost kCost{2.2, 0.4, 0.01, 15, 19, 9, 0.4, 0.2, 0.8};
      point.microseconds = factor * planner::predict(measurements.machine, kCost, point.work,
                                                     point.variant, point.chunk_bytes);
      measurements.points.push_back(point);
      bytes *= 4;
    }
  }
  std::ofstream(path) << tune::to_json(measurements).dump();
}

class TuneCommand : public ::testing::Test {
 protected:
  TuneCommand()
      : folder_(std::filesystem::temp_directory_path() /
                ("tune_command_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~TuneCommand() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return folder_ / name; }
  static Outcome tune(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {NICCOLITE_COMMAND, "tune"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return testing::run_command(arguments, {{"NICCOLITE_DEVICES", "virtual:2"}}, 120);
  }

 private:
  const std::filesystem::path folder_;
};

TEST_F(TuneCommand, MeasuresFitsAndChecksAMachine) {
  const Outcome outcome = tune(
      {"-r", "2", "-c", "all_reduce,sendrecv", "--sizes", "8,4K,64K,256K", "-J", path("x.json")});
  // How well a fit predicts the times of a busy machine, nobody knows.
  ASSERT_LE(outcome.status, 1) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("all_reduce, 2 ranks"), HasSubstr("point_to_point, 2 ranks"),
                    HasSubstr("prediction: median error"), HasSubstr("within 5 %: "),
                    HasSubstr("the library's own choice")));
  EXPECT_THAT(outcome.errors, HasSubstr("2 ranks, LL, 1 channel: "));

  const auto document = nlohmann::json::parse(std::ifstream(path("x.json")));
  EXPECT_EQ(document.at("machine"), "virtual");
  EXPECT_TRUE(document.at("failures").empty()) << document.at("failures").dump();
  std::set<std::string> variants;
  for (const auto& point : document.at("points"))
    variants.insert(point.at("collective").get<std::string>() + " " +
                    point.at("algorithm").get<std::string>() + " " +
                    point.at("protocol").get<std::string>());
  for (const char* variant :
       {"all_reduce ring LL", "all_reduce one_shot LL", "all_reduce two_shot LL128",
        "all_reduce two_shot_workers Simple", "point_to_point direct Simple"})
    EXPECT_EQ(variants.count(variant), 1u) << variant;

  // The file is as good as the machine.
  const Outcome again = tune({"--from", path("x.json")});
  EXPECT_EQ(again.status, outcome.status) << again.errors;
  EXPECT_EQ(again.output, outcome.output);
  const Outcome check = tune({"--from", path("x.json"), "--check"});
  EXPECT_LE(check.status, 1) << check.errors;  // of another machine's constants nothing is known
  EXPECT_THAT(check.output, AllOf(::testing::Not(HasSubstr("all_gather")), HasSubstr("within 5 %"),
                                  ::testing::Not(HasSubstr("derived prices"))));  // those of a fit
}

// An algorithm of a file is measured at the sizes that it is for, and fitted like others. Its
// constants need the file.
TEST_F(TuneCommand, MeasuresAlgorithmsOfFiles) {
  const std::string folder = path("algorithms");
  std::filesystem::create_directory(folder);
  std::string text =
      testing::run_command(
          {NICCOLITE_COMMAND, "schedule", "all_reduce", "-a", "one_shot", "-n", "2", "--json"}, {})
          .output;
  text.replace(text.find("\"one_shot\""), 10, R"("mine", "use": {"max_bytes": 65536})");
  std::ofstream(folder + "/mine.json") << text;
  const auto tune_with = [&](const std::vector<std::string>& flags, const std::string& files) {
    std::vector<std::string> arguments = {NICCOLITE_COMMAND, "tune"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return testing::run_command(
        arguments, {{"NICCOLITE_DEVICES", "virtual:2"}, {"NICCOLITE_ALGORITHMS", files}}, 120);
  };
  const Outcome measured =
      tune_with({"-r", "2", "-c", "all_reduce", "--protocols", "LL", "--channels", "1", "--sizes",
                 "8,1K,4K,16K,256K", "-J", path("x.json")},
                folder);
  ASSERT_LE(measured.status, 1) << measured.errors;
  const auto document = nlohmann::json::parse(std::ifstream(path("x.json")));
  EXPECT_TRUE(document.at("failures").empty()) << document.at("failures").dump();
  std::set<size_t> sizes, others;
  for (const auto& point : document.at("points"))
    (point.at("algorithm") == "mine" ? sizes : others).insert(point.at("bytes").get<size_t>());
  EXPECT_EQ(sizes, (std::set<size_t>{8, 1 << 10, 4 << 10, 16 << 10}));
  EXPECT_EQ(others.count(256 << 10), 1u);
  const Outcome without = tune_with({"--from", path("x.json")}, "");
  EXPECT_EQ(without.status, 2) << without.output;
  EXPECT_THAT(without.errors, HasSubstr("\"mine\" is no algorithm of all_reduce; if it is one of a "
                                        "file, NICCOLITE_ALGORITHMS must name"));
}

// Of times that the model predicts exactly, and of times that no constants give.
TEST_F(TuneCommand, GivesConstantsThatAreGoodAndNoOthers) {
  struct Case {
    std::vector<double> factors;  // of the model's times, size by size
    bool is_good;
    const char* errors;
  };
  for (const Case& c :
       {Case{{1, 1, 1, 1, 1, 1, 1, 1}, true, ""},
        Case{{1, 9, 1, 9, 1, 9, 1, 9}, false, "predictions are off by "},
        Case{{1, 1}, false, "0 of 2 measured variants have the 4 points that a fit takes"}}) {
    write_measurements(path("model.json"), c.factors);
    const Outcome outcome = tune({"--from", path("model.json"), "--tuning", path("mine.json")});
    EXPECT_EQ(outcome.status, c.is_good ? 0 : 1) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr(c.errors));
    EXPECT_THAT(outcome.output, HasSubstr("prediction: median error"));
    // What was written can be read, and chooses as it did.
    const Outcome read = tune({"--check", path("mine.json")});
    EXPECT_EQ(read.status, c.is_good ? 0 : 2) << read.errors;
    EXPECT_THAT(c.is_good ? read.output : read.errors,
                HasSubstr(c.is_good ? "class virtual, any GPU" : "mine.json"));
    const Outcome check = tune({"--from", path("model.json"), "--check", path("mine.json")});
    EXPECT_EQ(check.status, c.is_good ? 0 : 2) << check.output;
    std::filesystem::remove(path("mine.json"));
  }
}

TEST_F(TuneCommand, KeepsWhatItHasWhenItsTimeIsOver) {
  const Outcome outcome =
      tune({"-r", "2", "--sizes", "8,4K", "--limit", "1e-6", "-J", path("part.json")});
  EXPECT_EQ(outcome.status, 1) << outcome.errors;  // what there is, makes no constants
  EXPECT_THAT(outcome.errors, HasSubstr("runs left out: the time of --limit was over"));
  const auto document = nlohmann::json::parse(std::ifstream(path("part.json")));
  EXPECT_FALSE(document.at("own").empty());
  EXPECT_EQ(document.at("failures").size(), 1u);
}

TEST_F(TuneCommand, SaysWhatIsWrong) {
  const struct {
    std::vector<std::string> flags;
    int status;
    const char* message;
  } cases[] = {
      {{"-r", "3"}, 2, "--ranks: \"3\" is no number from 1 to 2"},
      {{"-r", "1"}, 2, "1 rank has no choice"},
      {{"-r", "two"}, 2, "--ranks"},
      {{"-c", "all_dance"}, 2, "--collectives: \"all_dance\" is none of"},
      {{"--protocols", "LL,Fast"}, 2, "--protocols: \"Fast\" is none of LL, LL128, Simple"},
      {{"--host-memory"}, 2, "host memory connects all virtual GPUs"},
      {{"--sizes", "8,lots"}, 2, "--sizes: \"lots\" is no size"},
      {{"-f", "1"}, 2, "--stepfactor"},
      {{"-b", "1M", "-e", "1K"}, 2, "--minbytes"},
      {{"--channels", "0"}, 2, "--channels"},
      {{"--limit", "-1"}, 2, "--limit"},
      {{"--from", "/nonexistent/x.json"}, 2, "/nonexistent/x.json"},
      {{"--lib", "/nonexistent/libnccl.so"}, 3, "/nonexistent/libnccl.so"},
      {{"-J", "/nonexistent/x.json"}, 3, "cannot write /nonexistent/x.json"},
      {{"--tuning", "/nonexistent/x.json"}, 3, "cannot write /nonexistent/x.json"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = tune(c.flags);
    EXPECT_EQ(outcome.status, c.status) << outcome.errors;
    EXPECT_THAT(outcome.errors, AllOf(HasSubstr("niccolite tune: "), HasSubstr(c.message)));
  }
}

TEST_F(TuneCommand, HelpHasExamples) {
  const Outcome outcome = tune({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--from"), HasSubstr("Examples:")));
}

}  // namespace
}  // namespace niccolite
