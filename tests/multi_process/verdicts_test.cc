// When an operation stands still, the log of every process names the one that it stands still for,
// and why, in the same words, and the flight recorder's files do.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "cli/flight/inspect.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

void CUDART_CB wait_for_ever(void* released) {
  while (!static_cast<std::atomic<bool>*>(released)->load())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// id nranks rank how: all-reduces twice; before the second one rank 1 does `how`: "late" (calls it
// after a line on its standard input would come, which is never), "stream" (work of the program's
// own before it never ends), "none".
ROLE(stalled) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  const std::string how = arguments[3];
  if (!ranks.all_reduce(3000)) return 1;
  constexpr size_t kCount = 2000;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  std::atomic<bool> released = false;
  if (how == "stream") REQUIRE_CUDA(cudaLaunchHostFunc(ranks.streams[0], wait_for_ever, &released));
  if (how != "late")
    REQUIRE_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, ranks.comms[0],
                               ranks.streams[0]));
  std::printf("STARTED\n");
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

struct Culprit {
  const char* how;
  bool is_stopped;
  const char* words;  // of the verdict
};

class Verdicts : public testing::TestWithParam<Culprit> {};

// The sentence, without what the line of a log has before it.
std::string verdict_in(const std::string& output) {
  const size_t stands = output.find(" stands still: ");
  const size_t begin = output.rfind("communicator 0x", stands);
  if (stands == std::string::npos || begin == std::string::npos) return "";
  return output.substr(begin, output.find('\n', stands) - begin);
}

TEST_P(Verdicts, AreTheSameOnEveryRank) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back(
        "stalled",
        Arguments{to_text(id), "3", std::to_string(rank), rank == 1 ? GetParam().how : "none"},
        Process::Environment{{"NCCL_DEBUG", "INFO"}});
  // A process that is stopped has begun all it ever will; the others may not have called yet.
  ASSERT_TRUE(processes[1].wait_for_line("STARTED")) << processes[1].output();
  if (GetParam().is_stopped) processes[1].kill(SIGSTOP);
  std::string first;
  for (const int rank : {0, 2, 1}) {
    if (rank == 1 && GetParam().is_stopped) continue;
    Process& process = processes[static_cast<size_t>(rank)];
    ASSERT_TRUE(process.wait_for_line("stands still")) << process.output();
    const std::string verdict = verdict_in(process.output());
    EXPECT_THAT(verdict, HasSubstr("stands still: rank 1 (process "));
    EXPECT_THAT(verdict, HasSubstr(GetParam().words));
    if (first.empty()) first = verdict;
    EXPECT_EQ(verdict, first) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Verdicts,
    testing::Values(Culprit{"late", false,
                            "has not called it: its last call was "
                            "ncclAllReduce(count 3000, float, sum), collective #1"},
                    Culprit{"stream", false, "has not come to it"},
                    Culprit{"late", true, "is stopped, by a signal"}),
    [](const auto& instance) {
      return instance.param.is_stopped ? std::string("StoppedProcess")
                                       : std::string(instance.param.how) + "Rank";
    });

// Three processes of which rank 1 is late, and what their flight recorders write.
class FlightRecorder : public testing::Test {
 protected:
  FlightRecorder() {
    std::string name = testing::TempDir() + "/flight.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FlightRecorder() override { std::filesystem::remove_all(folder_); }

  /// `environment_of`: of each rank, beside what all have.
  void start(const std::function<Process::Environment(int rank)>& environment_of) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int rank = 0; rank < 3; ++rank) {
      Process::Environment environment = environment_of(rank);
      environment["NCCL_DEBUG"] = "INFO";
      processes_.emplace_back(
          "stalled", Arguments{to_text(id), "3", std::to_string(rank), rank == 1 ? "late" : "none"},
          environment);
    }
    for (Process& process : processes_)
      ASSERT_TRUE(process.wait_for_line("STARTED")) << process.output();
  }
  /// What the files of `folder` say of the one communicator, once `is_enough`.
  static flight::Finding find(const std::filesystem::path& folder,
                              const std::function<bool(const flight::Finding&)>& is_enough) {
    flight::Finding finding;
    for (int tries = 0; tries < 2000; ++tries) {
      const auto read = flight::read_flight(folder);
      if (read.is_ok() && read.value().communicators.size() == 1)
        finding = flight::inspect(read.value()).front();
      if (is_enough(finding)) return finding;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "the dumps do not come:\n" << flight::to_text(finding);
    return finding;
  }
  static size_t count_dumps(const flight::Finding& finding) {
    return static_cast<size_t>(std::ranges::count_if(
        finding.lines, [](const flight::RankLine& line) { return line.has_dump; }));
  }

  std::filesystem::path folder_;
  std::vector<Process> processes_;
};

TEST_F(FlightRecorder, TellsWhoIsLate) {
  start([&](int) -> Process::Environment { return {{"NICCOLITE_DUMP", folder_.string()}}; });
  const auto finding = find(folder_, [](const auto& found) { return count_dumps(found) == 3; });
  EXPECT_EQ(finding.culprit, 1);
  EXPECT_THAT(finding.verdict, HasSubstr("rank 1 (process "));
  EXPECT_THAT(finding.lines[0].does, HasSubstr("for rank "));
  EXPECT_THAT(finding.lines[1].does,
              HasSubstr("last call ncclAllReduce(count 3000, float, sum), done"));
}

TEST_F(FlightRecorder, TellsWhoDiedThoughThatOneLeftNothing) {
  start([&](int) -> Process::Environment { return {{"NICCOLITE_DUMP", folder_.string()}}; });
  processes_[1].kill(SIGKILL);
  const auto finding = find(folder_, [](const auto& found) {
    return count_dumps(found) >= 2 && found.verdict.find("unexpectedly") != std::string::npos;
  });
  EXPECT_EQ(finding.culprit, 1);
  EXPECT_THAT(finding.verdict, HasSubstr("rank 1 (process "));
}

TEST_F(FlightRecorder, WritesOnASignalAndGoesOn) {
  start([&](int rank) -> Process::Environment {
    if (rank != 1) return {};
    return {{"NICCOLITE_DUMP", folder_.string()},
            {"NICCOLITE_DUMP_SIGNAL", std::to_string(SIGUSR2)}};
  });
  processes_[1].kill(SIGUSR2);
  const auto finding = find(folder_, [](const auto& found) { return count_dumps(found) == 1; });
  EXPECT_TRUE(finding.lines[1].has_dump);
  ASSERT_TRUE(processes_[1].wait_for_line("stands still")) << "the signal has not ended it";
}

TEST_F(FlightRecorder, HandsDumpsOfOtherMachinesToRank0) {
  start([&](int rank) -> Process::Environment {
    const std::filesystem::path own = folder_ / std::to_string(rank);
    return {{"NICCOLITE_DUMP", own.string() + "/"}, {"NCCL_HOSTID", own.string()}};
  });
  const auto finding =
      find(folder_ / "0", [](const auto& found) { return count_dumps(found) == 3; });
  EXPECT_EQ(finding.culprit, 1);
}

}  // namespace
}  // namespace niccolite::test
