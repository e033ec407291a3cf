// When an operation stands still, the log of every process names the one that it stands still for,
// and why, in the same words.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <regex>
#include <thread>

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
  std::smatch found;
  const std::regex sentence("communicator 0x[0-9a-f]+: ncclAllReduce.*");
  return std::regex_search(output, found, sentence) ? found.str() : "";
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

}  // namespace
}  // namespace niccolite::test
