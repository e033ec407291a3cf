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
#include "tests/multi_process/relay.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void CUDART_CB wait_for_ever(void* released) {
  while (!static_cast<std::atomic<bool>*>(released)->load())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// id nranks rank how: all-reduces twice; before the second one rank 1 does `how`: "late" (calls it
// after a line on its standard input would come, which is never), "stream" (work of the program's
// own before it never ends), "link" (nothing that its proxy sends arrives any more, nor what is
// sent back), "second_link" (the same, and all have one operation more before), "none", "second".
ROLE(stalled) {
  const bool loses_link = arguments[3].ends_with("link");
  if (loses_link) relay::start(1, 0, uint64_t{1} << 40);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  const std::string how = arguments[3];
  if (!ranks.all_reduce(3000)) return 1;
  // All ranks have had this one's part of an operation when they have their own of the next.
  if (how.starts_with("second") && !ranks.all_reduce(3000)) return 1;
  constexpr size_t kCount = 2000;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  std::atomic<bool> released = false;
  if (how == "stream") REQUIRE_CUDA(cudaLaunchHostFunc(ranks.streams[0], wait_for_ever, &released));
  if (loses_link) relay::hold();
  if (how != "late")
    REQUIRE_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, ranks.comms[0],
                               ranks.streams[0]));
  std::printf("STARTED\n");
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

// id nranks rank how: as "stalled", but before the second all-reduce rank 1 ("blocked") calls
// ncclCommSplit on another thread, which no other rank does, and waits for a signal.
ROLE(blocked) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(3000)) return 1;
  constexpr size_t kCount = 2000;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  std::thread splitting;
  if (arguments[3] == "blocked") {
    splitting = std::thread([&] {
      ncclComm_t made = nullptr;
      ncclCommSplit(ranks.comms[0], 0, 0, &made, nullptr);
    });
    int received = 0;
    sigwait(&signals, &received);
  }
  REQUIRE_NCCL(
      ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]));
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

// Three processes of a rank each, of which rank 1 stands still.
std::vector<Process> start_stalled(const char* how, const Process::Environment& environment) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back(
        "stalled", Arguments{to_text(id), "3", std::to_string(rank), rank == 1 ? how : "none"},
        environment);
  return processes;
}

TEST_P(Verdicts, AreTheSameOnEveryRank) {
  std::vector<Process> processes = start_stalled(GetParam().how, {{"NCCL_DEBUG", "INFO"}});
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

// Two threads with one communicator: the second one's call has not begun, but it is there.
TEST(VerdictOfThreads, NamesTheCallThatWaitsForAnotherThreads) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back(
        "blocked",
        Arguments{to_text(id), "3", std::to_string(rank), rank == 1 ? "blocked" : "none"},
        Process::Environment{{"NCCL_DEBUG", "INFO"}});
  // Rank 1 is inside the call that no other rank makes.
  ASSERT_TRUE(processes[1].wait_for_line("ncclCommSplit stands still")) << processes[1].output();
  processes[1].kill(SIGUSR1);
  for (Process& process : processes)
    EXPECT_TRUE(process.wait_for_line(
        "is in ncclAllReduce, which waits for another thread's ncclCommSplit on this communicator"))
        << process.output();
}

size_t count_of(std::string_view part, std::string_view text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Nobody has set NCCL_DEBUG.
TEST(VerdictUnasked, IsPrintedByOneProcessWhenTheStandstillLasts) {
  std::vector<Process> processes = start_stalled("late", {{"NICCOLITE_STALL_WARNING", "1"}});
  const auto printed = [&] {
    std::string all;
    for (const Process& process : processes) all += process.output();
    return all;
  };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // After one second, and after six. No line has the words below: all output is read.
  while (count_of("s so far)", printed()) < 2 && std::chrono::steady_clock::now() < limit)
    for (Process& process : processes) process.wait_for_line("no line", std::chrono::seconds(1));
  EXPECT_THAT(printed(),
              AllOf(HasSubstr("NCCL WARN communicator 0x"),
                    HasSubstr("stands still: rank 1 (process "), HasSubstr("has not called it")));
  EXPECT_EQ(count_of("stands still: rank 1", printed()), 2u) << printed();
}

// The line of `output` that says why something stands still; the same of every rank.
std::string common_verdict(std::vector<Process>& processes, std::initializer_list<int> ranks) {
  std::string common;
  for (const int rank : ranks) {
    Process& process = processes[static_cast<size_t>(rank)];
    EXPECT_TRUE(process.wait_for_line("stands still: ")) << process.output();
    const std::string verdict = verdict_in(process.output());
    if (common.empty()) common = verdict;
    EXPECT_EQ(verdict, common) << "rank " << rank;
  }
  return common;
}

// As if each process had a machine of its own; names of threads are for the relay.
std::vector<Process> start_on_machines(const char* how, const char* of_others) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back(
        "stalled", Arguments{to_text(id), "3", std::to_string(rank), rank == 1 ? how : of_others},
        Process::Environment{{"NCCL_DEBUG", "INFO"},
                             {"NCCL_SET_THREAD_NAME", "1"},
                             {"NCCL_HOSTID", fmt::format("machine{}", rank)}});
  return processes;
}

// The link may be lost as soon as rank 1 has what the others give: before its own data have left,
// before the first credit, and while it still connects.
TEST(VerdictOfTheNetwork, NamesTheLinkOnEveryRank) {
  std::vector<Process> processes = start_on_machines("link", "none");
  EXPECT_THAT(
      common_verdict(processes, {0, 2, 1}),
      testing::MatchesRegex(".* stands still: rank [0-9] .* cannot reach rank [0-9]: its link "
                            ".(from .* port [0-9]+ to .* port [0-9]+. stands still: .*"
                            "|to .* port [0-9]+. is not there: .*)"));
}

TEST(VerdictOfTheNetwork, NamesALinkThatHasCarried) {
  std::vector<Process> processes = start_on_machines("second_link", "second");
  EXPECT_THAT(
      common_verdict(processes, {0, 2, 1}),
      testing::MatchesRegex(".* stands still: rank [0-9] .* cannot reach rank [0-9]: its link "
                            ".from .* port [0-9]+ to .* port [0-9]+. stands still: .*"));
}

// A process whose first operation has not begun: others that make connections wait for it to
// answer.
ROLE(stopped_before_the_first) {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &go, nullptr);
  LocalRanks ranks(to_id(arguments[0]), 2, std::stoi(arguments[1]), 1);
  std::printf("STARTED\n");
  std::fflush(stdout);
  int received = 0;
  sigwait(&go, &received);
  return ranks.all_reduce(1000) ? 0 : 1;
}

TEST(VerdictOfConnecting, NamesAProcessThatIsStoppedBeforeTheFirstOperation) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"})
    processes.emplace_back("stopped_before_the_first", Arguments{to_text(id), rank},
                           Process::Environment{{"NCCL_DEBUG", "INFO"}});
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("STARTED")) << process.output();
  processes[1].kill(SIGSTOP);
  processes[0].kill(SIGUSR1);
  ASSERT_TRUE(processes[0].wait_for_line("stands still: ")) << processes[0].output();
  EXPECT_THAT(
      verdict_in(processes[0].output()),
      AllOf(HasSubstr("ncclAllReduce, which connects ranks, stands still: rank 1 (process "),
            HasSubstr("is stopped, by a signal")));
  processes[1].kill(SIGUSR1);
  processes[1].kill(SIGCONT);
  for (Process& process : processes) EXPECT_EQ(process.wait(), 0) << process.output();
}

// id rank: two messages from rank 0 to rank 1, sent from the program's memory, the second one when
// a signal comes. Rank 1 takes the first, and has given credit for the second, of which rank 0 then
// waits for nothing but an acknowledgement.
ROLE(sends_what_is_only_acknowledged) {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &go, nullptr);
  const int rank = std::stoi(arguments[1]);
  if (rank == 0) relay::start(1, 0, uint64_t{1} << 40);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  constexpr size_t kBytes = 64 << 10;
  void* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kBytes));
  if (rank == 0) {
    REQUIRE_NCCL(ncclSend(buffer, kBytes, ncclInt8, 1, ranks.comms[0], ranks.streams[0]));
  } else {
    REQUIRE_NCCL(ncclRecv(buffer, kBytes, ncclInt8, 0, ranks.comms[0], ranks.streams[0]));
  }
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  std::printf("DONE\n");
  std::fflush(stdout);
  int received = 0;
  sigwait(&go, &received);
  if (rank != 0) return 1;
  if (arguments[2] == "link") relay::hold();
  REQUIRE_NCCL(ncclSend(buffer, kBytes, ncclInt8, 1, ranks.comms[0], ranks.streams[0]));
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

// What rank 0 says.
std::string verdict_on_an_acknowledgement(const std::string& how) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"})
    processes.emplace_back("sends_what_is_only_acknowledged", Arguments{to_text(id), rank, how},
                           Process::Environment{{"NCCL_DEBUG", "INFO"},
                                                {"NCCL_SET_THREAD_NAME", "1"},
                                                {"NICCOLITE_NET_DIRECT_BYTES", "1"},
                                                {"NCCL_HOSTID", fmt::format("machine{}", rank)}});
  for (Process& process : processes) EXPECT_TRUE(process.wait_for_line("DONE")) << process.output();
  if (how == "stopped") processes[1].kill(SIGSTOP);
  processes[0].kill(SIGUSR1);
  EXPECT_TRUE(processes[0].wait_for_line("stands still: ", std::chrono::seconds(20)))
      << processes[0].output();
  return verdict_in(processes[0].output());
}

TEST(VerdictOfTheNetwork, NamesASilentProcessThatHasOnlyToAcknowledge) {
  EXPECT_THAT(
      verdict_on_an_acknowledgement("stopped"),
      AllOf(HasSubstr("ncclSend(count 65536, int8, peer 1) of rank 0 stands still: rank 1 "),
            HasSubstr("does not answer")));
}

TEST(VerdictOfTheNetwork, NamesALinkThatHasOnlyToBringAcknowledgements) {
  EXPECT_THAT(
      verdict_on_an_acknowledgement("link"),
      AllOf(HasSubstr("ncclSend(count 65536, int8, peer 1) of rank 0 stands still: rank 0 "),
            HasSubstr("cannot reach rank 1: its link")));
}

// id rank how: "both" ranks send first, or "one" sends what the other never receives.
ROLE(sends_to_nobody) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  constexpr size_t kBytes = 64 << 20;  // more than what proxies and slots have room for
  int8_t* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kBytes));
  for (const size_t bytes : {kBytes / 16, kBytes})
    if (arguments[2] == "both" || rank == 0)
      REQUIRE_NCCL(ncclSend(buffer, bytes, ncclInt8, 1 - rank, ranks.comms[0], ranks.streams[0]));
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &error));
  }
  std::printf("FAILED: %s\n", ncclGetLastError(ranks.comms[0]));
  std::fflush(stdout);
  // The other rank is to hear of the circle, and not of this process's end.
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

std::vector<Process> start_sending_to_nobody(const char* how) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"})
    processes.emplace_back("sends_to_nobody", Arguments{to_text(id), rank, how},
                           Process::Environment{{"NCCL_DEBUG", "INFO"},
                                                {"NCCL_HOSTID", std::string("machine") + rank}});
  return processes;
}

TEST(VerdictOfTheNetwork, NamesTheRankThatDoesNotReceive) {
  std::vector<Process> processes = start_sending_to_nobody("one");
  EXPECT_THAT(
      common_verdict(processes, {0, 1}),
      AllOf(HasSubstr("ncclSend(count 4194304, int8, peer 1) of rank 0 stands still: rank 1 "),
            HasSubstr("has not called it")));
}

TEST(VerdictOfTheNetwork, FailsTwoRanksThatBothSendFirst) {
  for (Process& process : start_sending_to_nobody("both")) {
    EXPECT_TRUE(process.wait_for_line("FAILED: ")) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("none can go on: make one of them call the other end"));
  }
}

ROLE(joins) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  return ranks.all_reduce(1000) ? 0 : 1;
}

Process joining(const ncclUniqueId& id, int nranks, int rank) {
  return {"joins", Arguments{to_text(id), std::to_string(nranks), std::to_string(rank)},
          Process::Environment{{"NCCL_DEBUG", "INFO"}}};
}

TEST(VerdictOfInit, NamesWhoHasNotJoinedAndWhoIsStopped) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const int rank : {0, 1}) processes.push_back(joining(id, 3, rank));
  for (Process& process : processes)
    ASSERT_TRUE(
        process.wait_for_line("initialization stands still: rank 2 (of no process so far) "
                              "has not joined"))
        << process.output();
  processes[1].kill(SIGSTOP);  // it has joined: it was told who had not
  processes.push_back(joining(id, 3, 2));
  for (const size_t rank : {0u, 2u})
    ASSERT_TRUE(processes[rank].wait_for_line("initialization stands still: rank 1 (process "))
        << processes[rank].output();
  EXPECT_THAT(processes[0].output(), HasSubstr("is stopped, by a signal (SIGSTOP) or a debugger"));
  processes[1].kill(SIGCONT);
  for (Process& process : processes) EXPECT_EQ(process.wait(), 0) << process.output();
}

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

// id rank: operations until one fails, by which the program ends without another word.
ROLE(ends_with_its_first_error) {
  LocalRanks ranks(to_id(arguments[0]), 3, std::stoi(arguments[1]), 1);
  constexpr size_t kCount = 3000;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  if (!ranks.all_reduce(kCount)) return 2;
  std::printf("STARTED\n");
  std::fflush(stdout);
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    error =
        ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
    while (error == ncclSuccess && cudaStreamQuery(ranks.streams[0]) == cudaErrorNotReady)
      REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &error));
  }
  std::_Exit(1);
}

TEST_F(FlightRecorder, HasADumpOfEachSurvivorThatEndsWithItsError) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const char* rank : {"0", "1", "2"})
    processes.emplace_back("ends_with_its_first_error", Arguments{to_text(id), rank},
                           Process::Environment{{"NICCOLITE_DUMP", folder_.string()}});
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("STARTED")) << process.output();
  processes[1].kill(SIGKILL);
  for (const size_t survivor : {0u, 2u})
    EXPECT_EQ(processes[survivor].wait(), 1) << processes[survivor].output();
  const auto read = flight::read_flight(folder_);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  ASSERT_EQ(read.value().communicators.size(), 1u);
  EXPECT_EQ(count_dumps(flight::inspect(read.value()).front()), 2u);
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
