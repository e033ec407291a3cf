// Ranks of several processes that call different things, and ranks that are merely late.

#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::string make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

ncclResult_t await_failure(ncclComm_t comm, milliseconds patience = seconds(40)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
    REQUIRE_NCCL(ncclCommGetAsyncError(comm, &state));
  }
  return state;
}

ncclResult_t wait_for_failure(const LocalRanks& ranks) { return await_failure(ranks.comms[0]); }

// id nranks rank count: agrees with the others once, then all-reduces `count`.
ROLE(disagree) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(500)) return 1;
  const ncclResult_t started = ranks.start(std::stoul(arguments[3]));
  std::printf("STARTED %d\n", started);
  std::printf("STATE %d\n", wait_for_failure(ranks));
  ranks.abort();
  return 0;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Processes of one machine, or of one each, by that protocol; empty: as the library has it.
struct Joined {
  const char* name;
  bool are_machines;
  const char* protocol;
};
class MismatchBetween : public testing::TestWithParam<Joined> {};

INSTANTIATE_TEST_SUITE_P(, MismatchBetween,
                         testing::Values(Joined{"Processes", false, ""},
                                         Joined{"Machines", true, "Simple"},
                                         Joined{"MachinesByWords", true, "LL"}),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(MismatchBetween, IsPrintedOnceByEveryProcess) {
  const std::string id = make_id();
  std::vector<Process> ranks;
  for (const auto& [rank, count] : {std::pair("0", "1000"), std::pair("1", "1000"),
                                    std::pair("2", "300000"), std::pair("3", "1000")}) {
    Process::Environment environment{{"NCCL_PROTO", GetParam().protocol}};
    if (GetParam().are_machines) environment["NCCL_HOSTID"] = std::string("machine") + rank;
    ranks.emplace_back("disagree", Arguments{id, "4", rank, count}, environment);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    Process& rank = ranks[r];
    EXPECT_EQ(rank.wait(), 0) << rank.output();
    EXPECT_THAT(rank.output(), HasSubstr("STATE 5"));  // ncclInvalidUsage
    // Of its device, whichever thread found it, and of the call that the user made.
    EXPECT_THAT(rank.output(), testing::ContainsRegex("\\[" + std::to_string(r) +
                                                      "\\] [^ ]+ \\(ncclAllReduce\\) NCCL WARN "));
    EXPECT_EQ(count_of(rank.output(), "NCCL WARN"), 1u) << rank.output();
    EXPECT_THAT(rank.output(),
                AllOf(HasSubstr("rank 2 called ncclAllReduce(count 300000, float, sum) as its "
                                "collective #2"),
                      HasSubstr("(communicator 0x"),
                      testing::ContainsRegex("rank [013] called ncclAllReduce\\(count 1000, float, "
                                             "sum\\) as its collective #2")));
  }
}

// id nranks rank: stops itself, and is told when it goes on.
ROLE(stopped) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(500)) return 1;
  std::printf("STOPPING\n");
  raise(SIGSTOP);
  std::printf("STATE %d\n", wait_for_failure(ranks));
  ranks.abort();
  return 0;
}

TEST(MismatchBetweenProcesses, IsToldThoughAThirdProcessIsStopped) {
  const std::string id = make_id();
  Process stopped("stopped", {id, "3", "2"});
  Process first("disagree", {id, "3", "0", "1000"}), second("disagree", {id, "3", "1", "1001"});
  ASSERT_TRUE(stopped.wait_for_line("STOPPING")) << stopped.output();
  for (Process* rank : {&first, &second}) {
    ASSERT_TRUE(rank->wait_for_line("STATE")) << rank->output();
    ASSERT_TRUE(rank->wait_for_line("NCCL WARN")) << rank->output();  // printed by another thread
    EXPECT_THAT(rank->output(),
                AllOf(HasSubstr("STATE 5"), HasSubstr("rank 0"), HasSubstr("count 1000,"),
                      HasSubstr("rank 1"), HasSubstr("count 1001,")));
  }
  stopped.kill(SIGCONT);
  EXPECT_EQ(stopped.wait(), 0) << stopped.output();
  EXPECT_THAT(stopped.output(), AllOf(HasSubstr("STATE 5"), HasSubstr("count 1001,")));
  for (Process* rank : {&first, &second}) EXPECT_EQ(rank->wait(), 0) << rank->output();
}

// id nranks rank: comes to its second operation when it gets SIGUSR1.
ROLE(late) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(500)) return 1;
  std::printf("READY\n");
  int signal = 0;
  sigwait(&signals, &signal);
  const bool right = ranks.all_reduce(1000);
  ranks.destroy();
  return right ? 0 : 1;
}

// id nranks rank
ROLE(punctual) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  bool right = true;
  for (size_t count : {500u, 1000u}) right = right && ranks.all_reduce(count);
  ranks.destroy();
  return right ? 0 : 1;
}

TEST(MismatchBetweenProcesses, IsNoneWhenARankIsLate) {
  const std::string id = make_id();
  Process late("late", {id, "3", "2"});
  const Process::Environment talkative{{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "COLL"}};
  Process first("punctual", {id, "3", "0"}, talkative),
      second("punctual", {id, "3", "1"}, talkative);
  ASSERT_TRUE(late.wait_for_line("READY")) << late.output();
  for (Process* rank : {&first, &second}) {
    ASSERT_TRUE(
        rank->wait_for_line("rank 2, whose last call was ncclAllReduce(count 500, float, "
                            "sum) as its collective #1"))
        << rank->output();
    EXPECT_THAT(rank->output(),
                HasSubstr("has waited for 1 s in ncclAllReduce(count 1000, float, sum) for"));
  }
  late.kill(SIGUSR1);
  for (Process* rank : {&late, &first, &second}) EXPECT_EQ(rank->wait(), 0) << rank->output();
}

// device, then for each communicator of two ranks in the order of init: id, rank; then the order in
// which they are used on the one stream, such as "10". One operation of each goes well before.
ROLE(circle) {
  const size_t communicators = (arguments.size() - 2) / 2;
  std::vector<ncclComm_t> comms(communicators);
  float* buffer = nullptr;
  cudaStream_t stream = nullptr;
  REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[0])));
  REQUIRE_CUDA(cudaMalloc(&buffer, 4096));
  REQUIRE_CUDA(cudaStreamCreate(&stream));
  for (size_t i = 0; i < communicators; ++i)
    REQUIRE_NCCL(ncclCommInitRank(&comms[i], 2, to_id(arguments[2 * i + 1]),
                                  std::stoi(arguments[2 * i + 2])));
  for (const ncclComm_t comm : comms)
    REQUIRE_NCCL(ncclAllReduce(buffer, buffer, 1000, ncclFloat, ncclSum, comm, stream));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (const char number : arguments.back()) {
    const ncclComm_t comm = comms[static_cast<size_t>(number - '0')];
    const ncclResult_t result =
        ncclAllReduce(buffer, buffer, 1000, ncclFloat, ncclSum, comm, stream);
    // It may be known already.
    if (result != ncclSuccess && result != ncclInvalidUsage) return 1;
  }
  // The first that fails; the others, if at all, do so about then.
  ncclResult_t first = ncclSuccess;
  for (int looks = 0; first == ncclSuccess && looks < 400; ++looks)
    for (const ncclComm_t comm : comms)
      if (first == ncclSuccess) first = await_failure(comm, milliseconds(100));
  for (const ncclComm_t comm : comms) std::printf("STATE %d\n", await_failure(comm, seconds(3)));
  // What comes first on the stream ends first.
  for (const char number : arguments.back())
    REQUIRE_NCCL(ncclCommAbort(comms[static_cast<size_t>(number - '0')]));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  return 0;
}

// Told of one of its communicators at least: one that has failed gives no accounts any more,
// without which a slow machine may not prove the circle for the other, too. Each is told once.
// Returns of how many.
size_t expect_told(Process& process, size_t communicators) {
  EXPECT_EQ(process.wait(std::chrono::seconds(120)), 0) << process.output();
  const size_t told = count_of(process.output(), "STATE 5");
  EXPECT_GE(told, 1u) << process.output();
  EXPECT_LE(told, communicators) << process.output();
  EXPECT_EQ(count_of(process.output(), "none can go on"), told) << process.output();
  return told;
}

TEST(CircleBetweenProcesses, OfTwoCommunicatorsIsToldToBoth) {
  const std::string first = make_id(), second = make_id();
  Process forward("circle", {"0", first, "0", second, "0", "01"});
  Process backward("circle", {"1", first, "1", second, "1", "10"});
  for (Process* process : {&forward, &backward}) {
    expect_told(*process, 2);
    EXPECT_THAT(
        process->output(),
        testing::ContainsRegex("rank 0 waits in ncclAllReduce\\(count 1000, float, sum\\) of "
                               "communicator 0x[0-9a-f]+ for rank 1, whose stream waits in "
                               "ncclAllReduce\\(count 1000, float, sum\\) of communicator "
                               "0x[0-9a-f]+ as rank 1 for rank 0, and none can go on"));
  }
}

TEST(CircleBetweenProcesses, OfThreeCommunicatorsIsToldToAll) {
  // Each process is in two of them; none is in all.
  const std::string ids[] = {make_id(), make_id(), make_id()};
  std::vector<Process> processes;
  processes.emplace_back("circle", Arguments{"0", ids[0], "0", ids[2], "1", "01"});
  processes.emplace_back("circle", Arguments{"1", ids[0], "1", ids[1], "0", "10"});
  processes.emplace_back("circle", Arguments{"2", ids[1], "1", ids[2], "0", "10"});
  for (Process& process : processes) {
    const size_t told = expect_told(process, 2);
    EXPECT_EQ(count_of(process.output(), ", whose stream waits in "), 2 * told) << process.output();
  }
}

}  // namespace
}  // namespace niccolite::test
