// `niccolite perf` with the library of this build, over virtual GPUs: every collective, type and
// operation, in streams and graphs, with threads and processes. What fails here with right unit
// tests is the way the parts are put together.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/cli/command.h"

namespace niccolite {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::Outcome;

struct Case {
  const char* ranks;
  const char* flags;
  size_t rows;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

TEST(PerfEndToEnd, MeasuresAllReduceWhenNothingIsNamed) {
  const Outcome outcome =
      testing::run_command({NICCOLITE_COMMAND, "perf"}, {{"NICCOLITE_DEVICES", "virtual:1"}});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("\n# all_reduce\n"));
}

TEST(PerfEndToEnd, FindsEveryResultRight) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("perf_end_to_end_" + std::to_string(getpid()) + ".json");
  for (const Case& c : {
           Case{"all -t 4", "-d all -o all --sizes 13,1003 -n 1 -w 0 --bitwise -r 1", 744},
           Case{"all -g 3", "-d float,int8 -o sum,avg,mulsumd --sizes 13,300007 -n 1 -r 2", 72},
           Case{"all --processes 2 -g 2", "-d float,f8e4m3 -o all --sizes 1003 -n 1 -w 0", 62},
           Case{"all --processes 4", "-d half --sizes 0,2,100002 -n 2", 39},
           Case{"all -t 4", "-d float,int8 -o sum,mulsum --sizes 13,3003 -n 2 -G 2 -c 2 -r 3", 64},
           Case{"all -g 4", "-d double --sizes 8,30008 -n 2 -G 2 -c 2 --send-recv", 26},
           Case{"all --processes 2 -t 2", "-d int64 --sizes 16,3000 -n 3 -G 2 -c 2", 26},
           Case{"broadcast,reduce,gather,scatter -t 4", "-r -1 --sizes 1003 -n 1", 16},
           Case{"all -t 2 -p 1", "-m 4 -z 1 -n 3 --sizes 4096", 12},
           Case{"all --processes 4", "-d float --sizes 12,3003,300007 -n 2 -R 2", 39},
           Case{"all --processes 2 -g 2", "-d float --sizes 3003,300007 -n 2 -G 2 -R 2", 26},
           Case{"all -t 4", "-d float --sizes 3003,300007 -n 2 -R 1", 26},
           Case{"all -g 1", "--sizes 1000 -n 2 -o sum,mulsum", 16},
           Case{"all -t 3", "--sizes 1003 --starts 0,1,3 --extra 0,2 -n 2", 72},
           Case{"all --processes 2", "-d half --sizes 1002,70004 --starts 1 --extra 1 -n 2 -G 2",
                26},
           Case{"all -t 2", "--sizes 1004 --starts 0,3 --communicators 3 -n 3", 26},
           Case{"all --processes 3", "--sizes 3003 --communicators 2 -n 2 -G 2 -R 1", 12},
           Case{"all -t 2", "-d half --sizes 1000,3003 --starts 0,1 -m 40 -n 2 -G 2 -c 2", 48},
           Case{"all_reduce -t 4", "-d float,bfloat16 --sizes 3003 -n 3 -G 3 -c 2 --bitwise", 2},
           Case{"all_reduce,alltoall -t 2", "--sizes 3004 -n 2 -G 2 --beside 24", 2},
           Case{"all_reduce --processes 2", "--sizes 3003 -n 2 --beside 24", 1},
           Case{"all -t 2", "--sizes 3004 -n 3 -c 3 --buffers 3", 13},
           Case{"all --processes 2", "--sizes 3004,300008 -n 2 -c 4 --buffers new", 26},
           Case{"all --processes 2", "--sizes 300008 -n 3 -c 3 --buffers 3 --allocator vmm", 13},
           Case{"all -t 2", "--sizes 3004,300008 -n 2 -c 4 --buffers new --allocator nccl", 26},
           Case{"all -t 2", "--sizes 300008 -n 3 -G 2 -c 3 --buffers 3 --allocator nccl", 13},
           Case{"all --processes 2", "--sizes 3004 -n 2 -c 4 --buffers new --allocator vmm", 13},
           Case{"all -g 2", "--sizes 3004 -n 2 -c 4 --buffers new --allocator vmm-private", 13},
           Case{"all --processes 2", "--sizes 3004 -n 4 --buffers new --allocator async", 13},
           Case{"all -t 2", "--sizes 3004 -n 4 -G 2 -c 4 --buffers 4 --allocator pool", 13},
           Case{"all -t 2", "--sizes 3004 -n 2 -c 4 --buffers new --allocator managed", 13},
           Case{"all --processes 2", "--sizes 3004 -n 2 -c 2 --buffers 2 --allocator host", 13},
           Case{"all_reduce -t 2", "--sizes 3004 -n 2 --buffers 2 -R 1 --allocator nccl", 1},
           Case{"all_reduce -t 2", "--sizes 3004 -n 2 -m 3 --buffers 4 --communicators 2", 1},
           Case{"all -t 3", "--device lsa -d float,half,int8,int64 --sizes 13,70003 -n 2", 40},
           Case{"all --processes 2 -g 2", "--device lsa --sizes 3003 --starts 0,1 -n 2 -m 2", 10},
           Case{"all_reduce -t 4", "--device multimem -d int32,half --sizes 13,70003 -n 2", 4},
           Case{"all -t 4", "--device gin --sizes 13,70003 -n 3 --communicators 2", 6},
           Case{"all --processes 2 -t 2", "--device gin -d half --sizes 3003 -n 3 --buffers 2", 3},
           Case{"all --machines 2x2", "--device gin --sizes 13,70003 -n 3", 6},
       }) {
    SCOPED_TRACE(::testing::Message() << c.ranks << " " << c.flags);
    std::filesystem::remove(file);
    std::vector<std::string> arguments = {
        NICCOLITE_COMMAND, "perf", "--lib", NICCOLITE_LIBRARY, "-T", "60", "-J", file};
    for (const std::string& word : words_of(std::string(c.ranks) + " " + c.flags))
      arguments.push_back(word);
    const Outcome outcome =
        testing::run_command(arguments, {{"NICCOLITE_DEVICES", "virtual:4"}}, 120);
    EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
    if (!std::filesystem::exists(file)) continue;
    const json document = json::parse(std::ifstream(file));
    EXPECT_EQ(document.at("wrong"), 0);
    EXPECT_EQ(document.at("rows").size(), c.rows);
    const bool is_beside = std::string(c.flags).find("--beside") != std::string::npos;
    for (const json& row : document.at("rows")) {
      const json& place = row.at("out_of_place");
      if (place.is_null()) continue;
      EXPECT_EQ(place.at("alone").is_object(), is_beside);
      if (!is_beside) continue;
      EXPECT_GT(place.at("alone").at("operation_us"), 0);
      EXPECT_GT(place.at("alone").at("product_us"), 0);
    }
  }
  std::filesystem::remove(file);
}

TEST(PerfEndToEnd, MeasuresKernelsByTheProxyAlone) {
  const Outcome outcome = testing::run_command(
      {NICCOLITE_COMMAND, "perf", "all_gather,alltoall,sendrecv", "--device", "gin", "--lib",
       NICCOLITE_LIBRARY, "-t", "4", "--sizes", "1003,70003", "-n", "2", "-T", "60"},
      {{"NICCOLITE_DEVICES", "virtual:4"}, {"NCCL_LSA_TEAM_SIZE", "1"}}, 120);
  EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("(--device gin)"));
  EXPECT_THAT(outcome.output, HasSubstr("Out of bounds values : 0 OK"));
}

TEST(PerfEndToEnd, SaysWhyKernelsCannotRun) {
  struct Case {
    const char* flags;
    const char* message;
  };
  for (const Case& c : {Case{"--device lsa", "the memory of 1 of the 2 ranks"},
                        Case{"--device gin", "no kernel for all_reduce, which reduces"},
                        Case{"--device lsa -G 2", "do not hold the kernels of --device"}}) {
    SCOPED_TRACE(c.flags);
    std::vector<std::string> arguments = {
        NICCOLITE_COMMAND, "perf", "all_reduce", "--lib", NICCOLITE_LIBRARY,
        "--sizes",         "8",    "-t",         "2"};
    for (const std::string& word : words_of(c.flags)) arguments.push_back(word);
    const Outcome outcome = testing::run_command(
        arguments, {{"NICCOLITE_DEVICES", "virtual:2"}, {"NCCL_LSA_TEAM_SIZE", "1"}}, 120);
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
}

// A second copy of the library in one process: neither sees the other's symbols or state.
TEST(PerfEndToEnd, SaysThatMemoryIsShortBeforeItMeasures) {
  for (const char* ranks : {"-t 4", "--processes 4"}) {
    std::vector<std::string> arguments = {NICCOLITE_COMMAND, "perf", "all_reduce", "--lib",
                                          NICCOLITE_LIBRARY, "-e",   "200G"};
    for (const std::string& word : words_of(ranks)) arguments.push_back(word);
    const Outcome outcome =
        testing::run_command(arguments, {{"NICCOLITE_DEVICES", "virtual:4"}}, 120);
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.output + outcome.errors,
                ::testing::ContainsRegex("4 ranks need 1600\\.[0-9] GiB for their buffers, and "
                                         "[0-9.]+ GiB .* fewer ranks .* smaller -e"));
  }
}

TEST(PerfEndToEnd, MeasuresACopyOfTheLibraryBesideIt) {
  const std::filesystem::path copy = std::filesystem::temp_directory_path() /
                                     ("libnccl_copy_" + std::to_string(getpid()) + ".so.2");
  std::filesystem::copy_file(NICCOLITE_LIBRARY, copy,
                             std::filesystem::copy_options::overwrite_existing);
  for (const char* flags : {"all -t 2", "all -t 2 -G 2"}) {
    SCOPED_TRACE(flags);
    std::vector<std::string> arguments = {NICCOLITE_COMMAND,
                                          "perf",
                                          "--lib",
                                          NICCOLITE_LIBRARY,
                                          "--vs",
                                          copy,
                                          "--rounds",
                                          "2",
                                          "--sizes",
                                          "1000,100000",
                                          "-n",
                                          "3",
                                          "-T",
                                          "60"};
    for (const std::string& word : words_of(flags)) arguments.push_back(word);
    const Outcome outcome =
        testing::run_command(arguments, {{"NICCOLITE_DEVICES", "virtual:2"}}, 120);
    EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
    EXPECT_THAT(outcome.output, ::testing::Not(::testing::HasSubstr("elements wrong")));
  }
  std::filesystem::remove(copy);
}

// In the process itself, and in processes that it starts.
TEST(PerfEndToEnd, RunsWithTheAlgorithmThatIsNamed) {
  for (const char* ranks : {"-t 4", "--processes 2 -t 2"}) {
    std::vector<std::string> arguments = {NICCOLITE_COMMAND, "perf", "all_reduce", "--sizes", "8"};
    for (const std::string& word : words_of(ranks)) arguments.push_back(word);
    arguments.emplace_back("--algorithm");
    arguments.emplace_back("tree");
    const std::map<std::string, std::string> environment{{"NICCOLITE_DEVICES", "virtual:4"},
                                                         {"NCCL_ALGO", "ring"},
                                                         {"NCCL_DEBUG", "INFO"},
                                                         {"NCCL_DEBUG_SUBSYS", "TUNING"}};
    const Outcome tree = testing::run_command(arguments, environment);
    EXPECT_EQ(tree.status, 0) << tree.errors;
    EXPECT_THAT(tree.output + tree.errors,
                ::testing::AllOf(HasSubstr("AllReduce: 8 Bytes -> Algo TREE"),
                                 ::testing::Not(HasSubstr("Algo RING"))));
    arguments.back() = "no_such";
    const Outcome unknown = testing::run_command(arguments, environment);
    EXPECT_EQ(unknown.status, 3) << unknown.output;
    EXPECT_THAT(unknown.output + unknown.errors, HasSubstr("NCCL_ALGO names 'no_such'"));
  }
}

// Two processes that know of each other what torchrun tells them.
TEST(PerfEndToEnd, RunsUnderALauncher) {
  const std::string port = std::to_string(20000 + getpid() % 20000);
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.emplace_back([&, rank] {
      outcomes[static_cast<size_t>(rank)] =
          testing::run_command({NICCOLITE_COMMAND, "perf", "all_reduce,alltoall", "-g", "2",
                                "--sizes", "1003", "-n", "2", "--lib", NICCOLITE_LIBRARY},
                               {{"RANK", std::to_string(rank)},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", std::to_string(rank)},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", port},
                                {"NICCOLITE_DEVICES", "virtual:4"}});
    });
  for (std::thread& process : processes) process.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
    EXPECT_EQ(outcome.errors, "");
  }
  EXPECT_THAT(outcomes[0].output, ::testing::AllOf(::testing::HasSubstr("#  Rank   3"),
                                                   ::testing::HasSubstr("device   3")));
  EXPECT_EQ(outcomes[1].output, "");  // one table
}

}  // namespace
}  // namespace niccolite
