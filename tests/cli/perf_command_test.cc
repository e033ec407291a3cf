// The command `niccolite perf`, run as users run it, on virtual GPUs and with the libraries of
// fake_nccl.cc.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/command.h"

namespace niccolite {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

Outcome perf(std::vector<std::string> flags, std::map<std::string, std::string> environment = {},
             const char* library = FAKE_NCCL) {
  std::vector<std::string> arguments = {NICCOLITE_COMMAND, "perf", "--lib", library};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  environment.emplace("NICCOLITE_DEVICES", "virtual:4");
  return testing::run_command(arguments, environment);
}

// The rows of the table: lines that are not comments, cut into words.
std::vector<std::vector<std::string>> rows_of(const std::string& output) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words),
                      std::istream_iterator<std::string>());
  }
  return rows;
}

class JsonFile {
 public:
  JsonFile()
      : path_(std::filesystem::temp_directory_path() /
              ("perf_test_" + std::to_string(getpid()) + ".json")) {}
  ~JsonFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }
  json read() const { return json::parse(std::ifstream(path_)); }

 private:
  std::filesystem::path path_;
};

TEST(PerfCommand, PrintsTheTableOfNcclTests) {
  const Outcome outcome = perf({"-b", "8", "-e", "4K", "-f", "8", "-n", "2", "-g", "4"});
  ASSERT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  const auto rows = rows_of(outcome.output);
  ASSERT_EQ(rows.size(), 4u) << outcome.output;
  // size count type redop root, then time algbw busbw #wrong out of place and in place
  ASSERT_EQ(rows[3].size(), 13u) << outcome.output;
  EXPECT_EQ(rows[3][0], "4096");
  EXPECT_EQ(rows[3][1], "1024");
  EXPECT_EQ(rows[3][2], "float");
  EXPECT_EQ(rows[3][3], "sum");
  EXPECT_EQ(rows[3][4], "-1");
  EXPECT_GT(std::stod(rows[3][5]), 0);
  EXPECT_EQ(rows[3][8], "0");
  EXPECT_EQ(rows[3][12], "0");
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("# Out of bounds values : 0 OK"),
                                    HasSubstr("# Avg bus bandwidth    : "),
                                    HasSubstr("#  Rank   3"), HasSubstr("version 2.28.4")));
}

TEST(PerfCommand, RunsThreadsProcessesAndGpusAlike) {
  struct Case {
    std::vector<std::string> flags;
    const char* ranks;
  };
  for (const Case& c :
       {Case{{"-t", "4"}, "#  Rank   3"}, Case{{"-t", "2", "-g", "2"}, "#  Rank   3"},
        Case{{"-g", "1"}, "#  Rank   0"}, Case{{"--processes", "2", "-g", "2"}, "#  Rank   3"},
        Case{{"--processes", "2", "-t", "2"}, "#  Rank   3"},
        Case{{"-t", "2", "-p", "1"}, "#  Rank   1"}, Case{{}, "#  Rank   3"}}) {
    std::vector<std::string> flags = {"-b", "4",  "-e",    "64K", "-f", "128", "-n",
                                      "2",  "-d", "int32", "-m",  "2",  "-T",  "30"};
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    SCOPED_TRACE(::testing::PrintToString(c.flags));
    const Outcome outcome = perf(flags);
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    EXPECT_EQ(rows_of(outcome.output).size(), 3u) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr(c.ranks), HasSubstr(": 0 OK")));
  }
}

TEST(PerfCommand, CountsThePlantedWrongElementAndFails) {
  JsonFile file;
  for (const char* kind : {"int32", "float"}) {
    SCOPED_TRACE(kind);
    const Outcome outcome = perf(
        {"-b", "40", "-e", "40", "-n", "1", "-g", "3", "-d", kind, "-c", "2", "-J", file.path()},
        {}, FAKE_NCCL_WRONG);
    EXPECT_EQ(outcome.status, 1) << outcome.errors;
    const auto rows = rows_of(outcome.output);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0][8], "2") << "one element of one rank in each of two verified iterations";
    EXPECT_EQ(rows[0][12], "2");
    EXPECT_THAT(outcome.output, HasSubstr("# Out of bounds values : 4 FAILED"));
    EXPECT_EQ(file.read().at("wrong"), 4);
  }
}

// Wrong: of n = 3 or 4 ranks the last gets one element wrong in each verified run.
TEST(PerfCommand, CountsWrongElementsOfEveryBuffer) {
  for (const char* buffers : {"2", "new"}) {
    SCOPED_TRACE(buffers);
    const Outcome outcome = perf(
        {"-g", "2", "--sizes", "1K", "-n", "2", "-c", "4", "--out-of-place", "--buffers", buffers},
        {}, FAKE_NCCL_WRONG);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.output, HasSubstr("Out of bounds values : 4 FAILED"));
  }
}

TEST(PerfCommand, TimesFirstCallsAndAllocationsOfBothLibraries) {
  JsonFile file;
  const Outcome outcome =
      perf({"-t", "2", "--sizes", "1K", "-n", "2", "--out-of-place", "--buffers", "new", "--first",
            "3", "--vs", FAKE_NCCL_OLD, "-J", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("# Buffers malloc: a fresh pair for each call"),
                                    HasSubstr("ours: first calls on fresh buffers"),
                                    HasSubstr("vs: first calls on fresh buffers")));
  const json document = file.read();
  EXPECT_EQ(document.at("options").at("buffers"), "new");
  const json& ours = document.at("rows").at(0).at("out_of_place");
  for (const json* place : {&ours, &ours.at("vs")}) {
    EXPECT_EQ(place->at("first_us").size(), 3u);
    EXPECT_GT(place->at("first_us").at(0), 0);
    EXPECT_GT(place->at("allocation_us"), 0);
  }
}

TEST(PerfCommand, VerifiesEveryCollective) {
  struct Case {
    std::vector<std::string> flags;
    size_t rows;
  };
  for (const Case& c :
       {Case{{"all", "-g", "4", "--sizes", "0,4,400,40004", "-o", "sum,mulsum,mulsumd"}, 76},
        Case{{"all", "-t", "3", "--sizes", "12,40012", "-d", "int32", "-r", "-1"}, 40},
        Case{{"all", "--processes", "2", "-t", "2", "--sizes", "404", "-r", "3"}, 13},
        Case{{"all", "--processes", "2", "-g", "2", "--sizes", "404", "--send-recv"}, 13},
        Case{{"all", "-g", "1", "--sizes", "4,404", "-d", "int32", "-o", "mulsum"}, 26},
        Case{{"broadcast,alltoall,sendrecv", "-g", "4", "-d", "all", "--sizes", "1000"}, 36}}) {
    SCOPED_TRACE(::testing::PrintToString(c.flags));
    std::vector<std::string> flags = c.flags;
    flags.insert(flags.end(), {"-n", "1", "-w", "1", "-c", "2", "-T", "30"});
    const Outcome outcome = perf(flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
    EXPECT_EQ(rows_of(outcome.output).size(), c.rows) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(": 0 OK"));
  }
}

TEST(PerfCommand, CountsAWrongElementOfEveryCollective) {
  for (const char* collective :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "gather",
        "scatter", "sendrecv", "hypercube", "alltoallv", "messages_8", "messages_32",
        "alltoall --send-recv", "gather --send-recv", "scatter --send-recv"}) {
    SCOPED_TRACE(collective);
    std::istringstream words(collective);
    std::vector<std::string> flags(std::istream_iterator<std::string>(words), {});
    // The last rank is the root, and is the one that gets the wrong element.
    flags.insert(flags.end(),
                 {"--sizes", "4000", "-n", "1", "-w", "1", "-g", "4", "-r", "3", "--out-of-place"});
    const Outcome outcome = perf(flags, {}, FAKE_NCCL_WRONG);
    EXPECT_EQ(outcome.status, 1) << outcome.errors;
    const auto rows = rows_of(outcome.output);
    ASSERT_EQ(rows.size(), 1u) << outcome.output;
    EXPECT_GT(std::stoul(rows[0][8]), 0u);
  }
}

TEST(PerfCommand, SeesANonRootThatWritesItsReceiveBuffer) {
  // Rank 3, which is not the root, has no output: the fake library damages it nevertheless.
  for (const char* collective : {"reduce", "gather"}) {
    SCOPED_TRACE(collective);
    const Outcome outcome =
        perf({collective, "--sizes", "4000", "-n", "1", "-g", "4"}, {}, FAKE_NCCL_WRONG);
    EXPECT_EQ(outcome.status, 1);
    const auto rows = rows_of(outcome.output);
    ASSERT_EQ(rows.size(), 1u) << outcome.output;
    EXPECT_EQ(rows[0][8], "1");
    EXPECT_EQ(rows[0][12], "1");
  }
}

TEST(PerfCommand, SizesAreThoseOfTheLargerBuffer) {
  const Outcome outcome =
      perf({"all_gather,reduce_scatter,alltoall,gather,scatter,hypercube,broadcast,reduce,sendrecv",
            "--sizes", "4100", "-n", "1", "-g", "4", "-r", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.errors;
  const auto rows = rows_of(outcome.output);
  ASSERT_EQ(rows.size(), 9u) << outcome.output;
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    // 1025 floats are four blocks of 256.
    EXPECT_EQ(rows[i][0], i < 6 ? "4096" : "4100");
    EXPECT_EQ(rows[i][1], i < 6 ? "256" : "1025");
  }
  EXPECT_EQ(rows[0][3], "none");
  EXPECT_EQ(rows[1][3], "sum");
  EXPECT_EQ(rows[0][4], "-1");
  EXPECT_EQ(rows[3][4], "2") << "the root of gather";
  EXPECT_EQ(rows[2][9], "N/A") << "alltoall has no in-place form";
}

TEST(PerfCommand, SaysWhatALibraryLacks) {
  struct Case {
    std::vector<std::string> flags;
    const char* library;
    const char* message;
  };
  for (const Case& c :
       {Case{{"all_gather"}, FAKE_NCCL_OLD, "all_gather needs ncclAllGather, which "},
        Case{{"alltoall"}, FAKE_NCCL_OLD, "alltoall needs ncclAlltoAll or ncclSend and ncclRecv"},
        Case{{"sendrecv"}, FAKE_NCCL_OLD, "sendrecv needs ncclSend and ncclRecv, which "},
        Case{{"all_reduce", "-o", "mulsum"}, FAKE_NCCL_OLD, "ncclRedOpCreatePreMulSum"},
        Case{{"reduce", "--vs", FAKE_NCCL_OLD}, FAKE_NCCL, "reduce needs ncclReduce, which "},
        Case{{"hypercube", "-g", "3"}, FAKE_NCCL, "hypercube needs a power of two of ranks"},
        Case{{"reduce", "-r", "4"}, FAKE_NCCL, "the roots of 4 ranks are 0 to 3, not 4"}}) {
    SCOPED_TRACE(c.message);
    std::vector<std::string> flags = c.flags;
    flags.insert(flags.end(), {"-e", "1K", "-n", "1"});
    const Outcome outcome = perf(flags, {}, c.library);
    EXPECT_EQ(outcome.status, 3);
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
}

TEST(PerfCommand, UsesSendsAndReceivesWhereTheFunctionIsMissing) {
  const Outcome outcome =
      perf({"alltoall,gather,scatter", "-e", "1K", "-n", "1", "-r", "1"}, {}, FAKE_NCCL_SEND_RECV);
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_EQ(rows_of(outcome.output).size(), 24u);
}

TEST(PerfCommand, LeavesOutOfAllWhatCannotBeMeasured) {
  const Outcome outcome = perf({"all", "-g", "3", "-n", "1", "--sizes", "12"}, {}, FAKE_NCCL_OLD);
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_EQ(rows_of(outcome.output).size(), 1u) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("# Skipped: broadcast needs ncclBroadcast"),
                                    HasSubstr("# Skipped: hypercube needs a power of two")));
}

TEST(PerfCommand, MeasuresTheMemoryOfBothLibraries) {
  JsonFile file;
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{"-g", "2"}, {"--processes", "2"}}) {
    std::vector<std::string> flags = {
        "alltoall", "--send-recv",       "--sizes",  "4K", "-n", "1",        "--memory",
        "--vs",     FAKE_NCCL_SEND_RECV, "--rounds", "1",  "-J", file.path()};
    flags.insert(flags.end(), ranks.begin(), ranks.end());
    const Outcome outcome = perf(flags);
    ASSERT_EQ(outcome.status, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("MiB after the run"));
    // The fake libraries take none of a device's memory.
    const json memory = file.read().at("device_memory");
    EXPECT_EQ(memory.at("library").at("after_run_bytes"), 0);
    EXPECT_EQ(memory.at("vs").at("after_init_bytes"), 0);
  }
}

TEST(PerfCommand, SeesRanksThatDisagreeBitForBit) {
  JsonFile file;
  const Outcome outcome =
      perf({"-b", "40", "-e", "40", "-n", "1", "-g", "3", "--bitwise", "-J", file.path()}, {},
           FAKE_NCCL_WRONG);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(file.read().at("rows").at(0).at("in_place").at("differing_ranks"), 1);
  EXPECT_EQ(perf({"-b", "40", "-e", "40", "-n", "1", "-g", "3", "--bitwise"}).status, 0);
}

TEST(PerfCommand, DoesNotVerifyWithCheckZero) {
  const Outcome outcome =
      perf({"-b", "40", "-e", "40", "-n", "1", "-g", "2", "-c", "0"}, {}, FAKE_NCCL_WRONG);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(rows_of(outcome.output).at(0).at(8), "N/A");
  EXPECT_THAT(outcome.output, HasSubstr("not checked"));
}

TEST(PerfCommand, MeasuresTwoLibrariesInTurn) {
  JsonFile file;
  const Outcome outcome = perf({"-b", "64", "-e", "64", "-n", "2", "-g", "2", "--rounds", "3",
                                "--vs", FAKE_NCCL_WRONG, "-J", file.path()});
  // The other library's errors are told, but are not ours.
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("version 2.28.4"), HasSubstr("version 2.29.5"),
                                    HasSubstr("ratio"), HasSubstr("--vs got 2 elements wrong")));
  ASSERT_EQ(rows_of(outcome.output).at(0).size(), 17u);
  const json document = file.read();
  EXPECT_EQ(document.at("run").at("vs").at("version"), "2.29.5");
  EXPECT_EQ(document.at("vs_wrong"), 2);
  for (const char* place : {"out_of_place", "in_place"}) {
    const json& result = document.at("rows").at(0).at(place);
    EXPECT_EQ(result.at("samples_us").size(), 3u);
    EXPECT_EQ(result.at("vs").at("samples_us").size(), 3u);
    EXPECT_EQ(result.at("wrong"), 0);
    EXPECT_EQ(result.at("vs").at("wrong"), 1);
    EXPECT_DOUBLE_EQ(result.at("ratio"), result.at("vs").at("time_us").get<double>() /
                                             result.at("time_us").get<double>());
  }
}

TEST(PerfCommand, WritesJsonThatSaysHowItWasMeasured) {
  JsonFile file;
  const Outcome outcome = perf(
      {"-b", "1K", "-e", "2K", "-n", "3", "--processes", "2", "--in-place", "-J", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.errors;
  const json document = file.read();
  EXPECT_EQ(document.at("schema"), "niccolite-perf-2");
  EXPECT_EQ(document.at("command").at(1), "perf");
  EXPECT_EQ(document.at("machine").at("virtual"), true);
  EXPECT_EQ(document.at("machine").at("ranks_on").at("Virtual GPU"), 2);
  EXPECT_EQ(document.at("options").at("processes"), 2);
  EXPECT_EQ(document.at("options").at("collectives"), json::array({"all_reduce"}));
  EXPECT_EQ(document.at("rows").at(0).at("collective"), "all_reduce");
  EXPECT_TRUE(document.at("device_memory").is_null());
  EXPECT_EQ(document.at("options").at("iterations"), 3);
  EXPECT_EQ(document.at("options").at("allocator"), "malloc");
  EXPECT_EQ(document.at("options").at("buffers"), 1);
  EXPECT_EQ(document.at("run").at("library").at("version"), "2.28.4");
  EXPECT_EQ(document.at("run").at("ranks").size(), 2u);
  EXPECT_NE(document.at("run").at("ranks").at(0).at("pid"),
            document.at("run").at("ranks").at(1).at("pid"));
  EXPECT_EQ(document.at("rows").size(), 2u);
  EXPECT_TRUE(document.at("rows").at(0).at("out_of_place").is_null());
  EXPECT_EQ(document.at("wrong"), 0);
  EXPECT_TRUE(document.at("failure").is_null());
  EXPECT_THAT(document.at("date").get<std::string>(),
              ::testing::MatchesRegex("....-..-..T..:..:..Z"));
}

TEST(PerfCommand, ReportsAKilledProcessInsteadOfHanging) {
  JsonFile file;
  const Outcome outcome =
      perf({"-b", "8", "-e", "1K", "-n", "2", "--processes", "2", "-g", "2", "-J", file.path()},
           {{"FAKE_NCCL_KILL_RANK", "3"}});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("process 1"), HasSubstr("ranks 2 to 3"), HasSubstr("signal 9")));
  EXPECT_THAT(file.read().at("failure").get<std::string>(), HasSubstr("signal 9"));
}

TEST(PerfCommand, ReportsAFailingRankInsteadOfHanging) {
  // The other ranks wait inside the library, which never wakes them.
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{"-t", "3"}, {"-g", "3"}, {"--processes", "3"}}) {
    SCOPED_TRACE(::testing::PrintToString(ranks));
    std::vector<std::string> flags = {"-b", "8", "-e", "1K", "-n", "2"};
    flags.insert(flags.end(), ranks.begin(), ranks.end());
    const Outcome outcome = perf(flags, {{"FAKE_NCCL_FAIL_RANK", "1"}});
    EXPECT_EQ(outcome.status, 3);
    EXPECT_THAT(outcome.errors,
                AllOf(HasSubstr("failure made to order"), Not(HasSubstr("another rank"))));
  }
}

TEST(PerfCommand, SaysWhatIsWrongWithItsArguments) {
  struct Case {
    std::vector<std::string> flags;
    int status;
    const char* message;
  };
  for (const Case& c :
       {Case{{"-d", "quad"}, 2, "quad"}, Case{{"--no-such-flag"}, 2, "--no-such-flag"},
        Case{{"-g", "5"}, 3, "5 ranks need 5 GPUs"},
        Case{{"--vs", "/nonexistent/libnccl.so"}, 3, "/nonexistent"},
        Case{{"-g", "2", "-d", "half"}, 3, "invalid argument"},
        Case{{"-g", "2", "--allocator", "nccl"}, 3, "has no ncclMemAlloc"}}) {
    SCOPED_TRACE(c.message);
    const Outcome outcome = perf(c.flags);
    EXPECT_EQ(outcome.status, c.status);
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
  EXPECT_EQ(testing::run_command({NICCOLITE_COMMAND}, {}).status, 2);
}

TEST(PerfCommand, TriesTheFileBeforeItMeasures) {
  for (const char* path : {"/nonexistent/results.json", "/tmp"}) {
    const Outcome outcome = perf({"-b", "8", "-e", "8", "-n", "1", "-J", path});
    EXPECT_EQ(outcome.status, 3);
    EXPECT_EQ(outcome.output, "") << "measured first";
    EXPECT_THAT(outcome.errors, AllOf(HasSubstr("cannot write"), HasSubstr(path)));
  }
}

TEST(PerfCommand, HelpListsTheCollectives) {
  const Outcome outcome = perf({"--help"});
  for (const char* name : {"all_reduce ", "all_gather ", "reduce_scatter ", "broadcast ", "reduce ",
                           "alltoall ", "gather ", "scatter ", "sendrecv ", "hypercube ", "all "})
    EXPECT_THAT(outcome.output, HasSubstr(std::string("\n  ") + name));
}

TEST(PerfCommand, ExplainsItself) {
  const Outcome outcome = perf({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("--minbytes"), HasSubstr("--cudagraph"), HasSubstr("--processes"),
                    HasSubstr("Exit status"), Not(HasSubstr("--team-fd"))));
}

TEST(VersionCommand, PrintsTheVersionOfTheLibrary) {
  const Outcome outcome =
      testing::run_command({NICCOLITE_COMMAND, "version", "--lib", FAKE_NCCL}, {});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("(NCCL 2."), HasSubstr("2.28.4")));
  EXPECT_EQ(
      testing::run_command({NICCOLITE_COMMAND, "version", "--lib", "/nonexistent"}, {}).status, 3);
}

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PerfCommand, WritesAPageAPictureAndLines) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("perf_files_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const Outcome outcome =
      perf({"--ranks", "2", "--sizes", "8,1K,1M", "-n", "1", "--html", folder / "p.html", "--svg",
            folder / "p.svg", "--csv", folder / "p.csv", "--output", folder / "p.json"});
  ASSERT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("# Avg bus bandwidth"));
  EXPECT_THAT(contents_of(folder / "p.html"), AllOf(HasSubstr("<svg "), HasSubstr("</html>")));
  EXPECT_THAT(contents_of(folder / "p.svg"), AllOf(HasSubstr("Latency"), HasSubstr("</svg>")));
  EXPECT_THAT(contents_of(folder / "p.csv"), HasSubstr("all_reduce,float,sum,-1,0,2,1048576,"));
  EXPECT_EQ(json::parse(contents_of(folder / "p.json")).at("rows").size(), 3u);
  std::filesystem::remove_all(folder);
  const Outcome unwritable = perf({"--sizes", "8", "--html", "/nonexistent/x.html"});
  EXPECT_EQ(unwritable.status, 3);
  EXPECT_THAT(unwritable.errors, HasSubstr("cannot write /nonexistent/x.html"));
}

TEST(PerfCommand, PrintsOneDocumentOnStandardOutput) {
  const Outcome document = perf({"--ranks", "2", "--sizes", "8,1K", "-n", "1", "--json"});
  EXPECT_EQ(document.status, 0) << document.errors;
  EXPECT_EQ(json::parse(document.output).at("schema"), "niccolite-perf-2");
  EXPECT_EQ(document.errors, "") << "progress is for terminals";
  const Outcome lines = perf({"--ranks", "2", "--sizes", "8,1K", "-n", "1", "--csv", "-"});
  EXPECT_TRUE(lines.output.starts_with("collective,")) << lines.output;
}

// `script` runs the command on a terminal of its own.
TEST(PerfCommand, TellsATerminalHowFarItIs) {
  const std::string line = std::string(NICCOLITE_COMMAND) + " perf --lib " + FAKE_NCCL +
                           " --ranks 2 --sizes 8,1K -n 1 2>&1 >/dev/null";
  const Outcome outcome = testing::run_command({"script", "-qec", line, "/dev/null"},
                                               {{"NICCOLITE_DEVICES", "virtual:4"}});
  if (outcome.status == 127) GTEST_SKIP() << "there is no program `script`";
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("0 of 2 rows"), HasSubstr("1 of 2 rows, all_reduce")));
}

}  // namespace
}  // namespace niccolite
