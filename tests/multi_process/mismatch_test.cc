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

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::string make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

ncclResult_t wait_for_failure(const LocalRanks& ranks) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(40);
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &state));
  }
  return state;
}

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

TEST(MismatchBetweenProcesses, IsPrintedOnceByEveryProcess) {
  const std::string id = make_id();
  std::vector<Process> ranks;
  for (const auto& [rank, count] : {std::pair("0", "1000"), std::pair("1", "1000"),
                                    std::pair("2", "300000"), std::pair("3", "1000")})
    ranks.emplace_back("disagree", Arguments{id, "4", rank, count});
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

}  // namespace
}  // namespace niccolite::test
