// The command `niccolite explain`, run as users run it.
#include <gmock/gmock.h>

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/status.h"
#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

Outcome explain(const std::vector<std::string>& flags,
                const std::map<std::string, std::string>& environment = {}) {
  std::vector<std::string> arguments = {NICCOLITE_COMMAND, "explain"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return testing::run_command(arguments, environment);
}

TEST(ExplainCommand, PrintsWhatIsChosenAndWhyTheOthersAreNot) {
  const Outcome outcome = explain({"all_reduce", "-b", "8M", "-g", "4", "-m", "cuda"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("AllReduce of 8388608 bytes over 4 ranks, cuda: "),
                    ContainsRegex("[a-z_]+ +[A-Za-z0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+  chosen\n"),
                    ContainsRegex("ring +Simple +[0-9]+ +[0-9]+ +[0-9.]+  takes [0-9.]+ % longer"),
                    ContainsRegex("one_shot +Simple +- +- +-  is for the lowest latency")));
}

TEST(ExplainCommand, PricesTheSwitchWhereTheUserNamesIt) {
  const std::vector<std::string> flags{"all_reduce", "-b", "512M", "-g", "8", "-m", "cuda"};
  const Outcome outcome = explain(flags, {{"NCCL_NVLS_ENABLE", "1"}});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(ContainsRegex("cuda: two_shot[a-z_]* NVLS Simple [0-9]+, predicted"),
                    ContainsRegex("two_shot[a-z_]* NVLS +Simple .*  chosen\n"),
                    Not(ContainsRegex("chosen\n[^$]*chosen\n"))));
  // Nobody has measured a switch: without being named it is not there.
  EXPECT_THAT(explain(flags).output, Not(ContainsRegex("NVLS +Simple")));
}

TEST(ExplainCommand, PricesANetworkThatReducesWhereTheUserHasOne) {
  const std::vector<std::string> flags{"all_reduce", "-b", "64M",    "--machines",
                                       "4x8",        "-m", "virtual"};
  const Outcome outcome =
      explain(flags, {{"NCCL_COLLNET_ENABLE", "1"}, {"NCCL_ALGO", "CollnetDirect,CollnetChain"}});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("which is not measured"),
                                    ContainsRegex("collnetdirect +Simple +[0-9]+ "),
                                    ContainsRegex("collnetchain +Simple +[0-9]+ ")));
  const Outcome without =
      explain(flags, {{"NCCL_COLLNET_ENABLE", "1"}, {"NCCL_ALGO", "^CollnetDirect"}});
  EXPECT_THAT(without.output, ContainsRegex("collnetdirect +Simple .*left out by NCCL_ALGO"));
  EXPECT_THAT(explain(flags).output,
              ContainsRegex("collnetdirect +Simple +- .*needs a network that reduces"));
  EXPECT_THAT(
      explain(flags, {{"NCCL_COLLNET_ENABLE", "1"}, {"NCCL_COLLNET_NODE_THRESHOLD", "5"}}).output,
      ContainsRegex("collnetdirect +Simple +- .*needs a network that reduces"));
}

// Two machines, to which ranks were dealt in turns.
TEST(ExplainCommand, KnowsTheRingsOfATopologyFile) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("niccolite_explain_topology_" + std::to_string(getpid()) + ".xml"))
                               .string();
  std::string text = "<system version='1'>";
  for (const char* const machine : {"a", "b"}) {
    text += fmt::format("<cpu numaid='0' host_hash='{}'>", machine);
    for (const int place : {0, 1})
      text += fmt::format("<pci busid='0000:0{0}:00.0'><gpu dev='{0}' sm='90' rank='{1}'/></pci>",
                          place, 2 * place + (machine[0] == 'a' ? 0 : 1));
    text += "</cpu>";
  }
  std::ofstream(path) << text << "</system>";
  const Outcome outcome = explain({"all_reduce", "--topology", path, "-m", "virtual"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("over 4 ranks, virtual-sockets"), HasSubstr("ring 0 2 1 3\n")));
  const Outcome wrong = explain({"all_reduce", "--topology", "/nonexistent.xml", "-m", "virtual"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.errors, HasSubstr("/nonexistent.xml"));
  std::filesystem::remove(path);
}

TEST(ExplainCommand, IsReadByPrograms) {
  for (const char* machine :
       {"cuda", "cuda-slots", "cuda-host-memory", "cuda-sockets", "virtual", "virtual-sockets"})
    for (const char* collective : {"all_reduce", "reduce", "broadcast", "all_gather",
                                   "reduce_scatter", "alltoall", "gather", "scatter", "sendrecv"}) {
      SCOPED_TRACE(std::string(collective) + " " + machine);
      const Outcome outcome =
          explain({collective, "-b", "999", "-g", "3", "-m", machine, "-d", "half", "--json"});
      ASSERT_EQ(outcome.status, 0) << outcome.errors;
      const nlohmann::json document = nlohmann::json::parse(outcome.output);
      EXPECT_EQ(document["format"], "niccolite-explain-1");
      EXPECT_EQ(document["ranks"], 3);
      // Whole elements, a block for each rank where there are blocks.
      EXPECT_TRUE(document["bytes"] == 998 || document["bytes"] == 996) << document["bytes"];
      EXPECT_EQ(document["alternatives"][0]["verdict"], "chosen");
      for (const nlohmann::json& each : document["alternatives"])
        EXPECT_EQ(each.contains("microseconds"), each["verdict"] != "ineligible") << each;
    }
}

TEST(ExplainCommand, HeedsTheVariablesAsProgramsDo) {
  const Outcome ring = explain({"all_reduce", "-g", "4", "-m", "cuda"}, {{"NCCL_ALGO", "ring"}});
  EXPECT_EQ(ring.status, 0) << ring.errors;
  EXPECT_THAT(ring.output, AllOf(HasSubstr("with NCCL_ALGO=ring\n"), HasSubstr(", cuda: ring "),
                                 ContainsRegex("one_shot +LL +- +- +-  is left out by NCCL_ALGO")));
}

// An algorithm of a file: by its price, by the sizes, types and priority that its file gives, and
// not among other numbers of ranks.
TEST(ExplainCommand, ChoosesAmongAlgorithmsOfFiles) {
  std::string folder = std::filesystem::temp_directory_path() / "algorithms.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string text =
      testing::run_command({NICCOLITE_COMMAND, "schedule", "all_reduce", "-a", "ring", "--json"},
                           {})
          .output;
  const auto explained = [&](const std::string& use, const char* bytes, const char* ranks,
                             const char* type = "float") {
    std::string changed = text;
    changed.replace(changed.find("\"ring\""), 6, "\"mine\"" + use);
    std::ofstream(folder + "/mine.json") << changed;
    return explain({"all_reduce", "-b", bytes, "-g", ranks, "-m", "virtual", "-d", type},
                   {{"NICCOLITE_ALGORITHMS", folder}})
        .output;
  };
  EXPECT_THAT(explained("", "1M", "4"),
              AllOf(HasSubstr("virtual: ring Simple"),
                    ContainsRegex("mine +Simple .* takes [0-9.]+ % longer")));
  EXPECT_THAT(explained("", "1M", "3"), ContainsRegex("mine +Simple .* is for 4 to 4 ranks"));
  const std::string preferred = R"(, "use": {"min_bytes": 65536, "priority": 2})";
  EXPECT_THAT(explained(preferred, "1M", "4"), AllOf(HasSubstr("virtual: mine Simple"),
                                                     HasSubstr("has a lower priority than mine")));
  EXPECT_THAT(explained(preferred, "4K", "4"),
              AllOf(Not(HasSubstr("virtual: mine")), HasSubstr("is for 65536 bytes or more")));
  const std::string of_halves = R"(, "use": {"types": ["half", "bfloat16"], "priority": 1})";
  EXPECT_THAT(explained(of_halves, "4K", "4", "bfloat16"), HasSubstr("virtual: mine"));
  EXPECT_THAT(explained(of_halves, "4K", "4", "float"),
              AllOf(Not(HasSubstr("virtual: mine")),
                    HasSubstr("is for half, bfloat16, as its file says, not for float")));
  const std::string of_machines = R"(, "use": {"machines": 2})";
  EXPECT_THAT(explained(of_machines, "4K", "4"), HasSubstr("is for ranks on 2 machines"));
  std::filesystem::remove_all(folder);
}

TEST(ExplainCommand, LooksAtThisMachineWhereTheFlagsLeaveItOpen) {
  const Outcome outcome = explain({"broadcast"}, {{"NICCOLITE_DEVICES", "virtual:3"}});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("Broadcast of 1048576 bytes over 3 ranks, virtual: "));
}

// How the constants were measured takes more words than a line has: --json prints them all.
TEST(ExplainCommand, NamesTheMeasurementInOneLine) {
  std::vector<std::string> flags{"all_reduce", "-b", "8M", "-g", "4", "-m", "cuda"};
  std::istringstream lines(explain(flags).output);
  std::string line;
  while (std::getline(lines, line) && !line.starts_with("constants of ")) continue;
  EXPECT_THAT(line, AllOf(HasSubstr("constants of cuda, built in: 2 and 4 x NVIDIA H200"),
                          EndsWith(" ...")));
  EXPECT_LE(line.size(), 150);
  flags.emplace_back("--json");
  const nlohmann::json document = nlohmann::json::parse(explain(flags).output);
  EXPECT_GT(document["tuning"]["about"].get<std::string>().size(), line.size());
}

// NICCOLITE_TUNING comes before what was built in, here and in programs (planner::make_settings()).
TEST(ExplainCommand, ChoosesByTheTuningOfTheUser) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("niccolite_explain_{}.json", getpid());
  const std::vector<std::string> flags{"all_reduce", "-b", "8M", "-g", "4", "-m", "cuda", "--json"};
  const auto chosen_with = [&](const std::string& tuning) {
    const Outcome outcome = explain(flags, {{"NICCOLITE_TUNING", tuning}});
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    const nlohmann::json document = nlohmann::json::parse(outcome.output);
    return std::pair(document["alternatives"][0], document["tuning"]["origin"].get<std::string>());
  };
  const auto [built_in, origin] = chosen_with("");
  EXPECT_EQ(origin, "built in");
  const auto [same, same_origin] = chosen_with(NICCOLITE_TUNING_FOLDER);
  EXPECT_EQ(same, built_in);
  EXPECT_EQ(same_origin, NICCOLITE_TUNING_FOLDER "/cuda.json");

  // What was fastest takes a second.
  nlohmann::json tuning =
      nlohmann::json::parse(std::ifstream(NICCOLITE_TUNING_FOLDER "/cuda.json"));
  const std::string algorithm = built_in["algorithm"], protocol = built_in["protocol"];
  tuning["costs"]["all_reduce"][algorithm][protocol][0] = 1e6;
  std::ofstream(path) << tuning;
  const auto [other, other_origin] = chosen_with(path.string());
  EXPECT_EQ(other_origin, path.string());
  EXPECT_NE(std::pair(other["algorithm"], other["protocol"]),
            std::pair(built_in["algorithm"], built_in["protocol"]));

  // Connections have what a file says of their slots, and what was built in where it says nothing.
  tuning = nlohmann::json::parse(std::ifstream(NICCOLITE_TUNING_FOLDER "/cuda.json"));
  for (const char* each : {"LL", "LL128", "Simple"}) tuning["slots"][each]["channels"] = 2;
  std::ofstream(path) << tuning;
  EXPECT_LE(chosen_with(path.string()).first["channels"], 2);
  tuning.erase("slots");
  std::ofstream(path) << tuning;
  EXPECT_EQ(chosen_with(path.string()).first, built_in);
  for (const char* each : {"LL", "LL128", "Simple"}) tuning["slots_of_two"][each]["channels"] = 2;
  std::ofstream(path) << tuning;
  EXPECT_EQ(chosen_with(path.string()).first, built_in);
  const Outcome of_two = explain({"all_reduce", "-b", "8M", "-g", "2", "-m", "cuda", "--json"},
                                 {{"NICCOLITE_TUNING", path.string()}});
  EXPECT_LE(nlohmann::json::parse(of_two.output)["alternatives"][0]["channels"], 2);

  std::ofstream(path) << "{\n\"schema\": 5}";
  const Outcome bad = explain(flags, {{"NICCOLITE_TUNING", path.string()}});
  EXPECT_EQ(bad.status, 2) << bad.output;
  EXPECT_THAT(bad.errors, HasSubstr("NICCOLITE_TUNING: " + path.string() +
                                    ": line 2: schema is not \"niccolite-tuning-1\""));
  std::filesystem::remove(path);
}

TEST(ExplainCommand, SaysWhatIsWrong) {
  struct Case {
    std::vector<std::string> flags;
    const char* message;
  };
  for (const Case& c :
       {Case{{}, "which collective?"},
        Case{{"all_dance", "-g", "2", "-m", "cuda"}, "\"all_dance\" is none of all_reduce"},
        Case{{"all_reduce", "-g", "2", "-m", "tpu"}, "--machine: \"tpu\" is none of cuda"},
        Case{{"all_reduce", "-g", "1", "-m", "cuda"}, "of 1 rank there is nothing to choose"},
        Case{{"all_reduce", "-g", "2", "-m", "cuda", "-d", "quad"}, "\"quad\" is none of int8"},
        Case{{"all_gather", "-g", "4", "-m", "cuda", "-b", "8"}, "8 are less than an element"},
        Case{{"all_reduce", "-g", "2", "-m", "cuda", "-b", "much"}, "much"}}) {
    const Outcome outcome = explain(c.flags);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace niccolite
