// What survivors see when something goes wrong in another process: the documented code within
// seconds, a message that names the culprit, and no hang.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "tests/api/trial.h"
#include "tests/base/full_descriptors.h"
#include "tests/multi_process/buffer_ranks.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

ncclUniqueId make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return id;
}

// The process's descriptors, and the file of each.
std::map<int, std::string> open_files() {
  std::map<int, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the iterator's own descriptor, too
    const std::string file = std::filesystem::read_symlink(entry.path(), closed);
    if (!closed) files.emplace(std::stoi(entry.path().filename()), file);
  }
  return files;
}

// Waits until none is opened or closed for a while: the root's thread of a communicator that has
// just ended closes some later.
std::map<int, std::string> settled_open_files() {
  std::map<int, std::string> files = open_files();
  for (int same = 0; same < 50;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::map<int, std::string> now = open_files();
    same = now == files ? same + 1 : 0;
    files = std::move(now);
  }
  return files;
}

// Returns once no more are open than before, or after ten seconds. Threads that the library keeps
// open some for a moment: RAS reads /proc when another process has its port, which takes long on a
// busy machine.
std::map<int, std::string> open_files_soon(size_t before) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(10);
  std::map<int, std::string> files = open_files();
  while (files.size() > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    files = open_files();
  }
  return files;
}

// As often as would be enough for any wait to end that were to end by itself.
bool goes_on_waiting(const LocalRanks& ranks) {
  for (int look = 0; look < 200; ++look) {
    if (!ranks.is_waiting()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A graph of one all-reduce, without its input.
cudaGraphExec_t capture(const LocalRanks& ranks, float* buffer, size_t count) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(ranks.streams[0], cudaStreamCaptureModeThreadLocal));
  REQUIRE_NCCL(
      ncclAllReduce(buffer, buffer, count, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]));
  REQUIRE_CUDA(cudaStreamEndCapture(ranks.streams[0], &graph));
  REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  REQUIRE_CUDA(cudaGraphDestroy(graph));
  return executable;
}

// id nranks rank how: all-reduces once, says so, then starts an operation that a peer does not come
// to ("graph": as the replay of a graph), and says what it sees when that peer is gone. Ends by
// `how`: abort, destroy, graph (aborts) or exit.
ROLE(survivor) {
  const std::string how = arguments[3];
  {  // what the library keeps for as long as the process lives
    LocalRanks alone(
        [] {
          ncclUniqueId id;
          REQUIRE_NCCL(ncclGetUniqueId(&id));
          return id;
        }(),
        1, 0, 1);
    alone.destroy();
  }
  const std::map<int, std::string> files = settled_open_files();
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(1000)) return 1;
  float* buffer = nullptr;
  cudaGraphExec_t graph = nullptr;
  if (how == "graph") {
    REQUIRE_CUDA(cudaMalloc(&buffer, 400'000));
    graph = capture(ranks, buffer, 100'000);
    REQUIRE_CUDA(cudaGraphLaunch(graph, ranks.streams[0]));
  } else {
    REQUIRE_NCCL(ranks.start(100'000));
  }
  std::printf("STARTED\n");
  const ncclResult_t state = ranks.finish();
  std::printf("STATE %d LAST %s\n", state, ncclGetLastError(nullptr));
  if (graph != nullptr) REQUIRE_CUDA(cudaGraphLaunch(graph, ranks.streams[0]));
  std::printf("WAITS %d\n", goes_on_waiting(ranks));
  // The communicator stays failed.
  int count = 0;
  const ncclResult_t again =
      ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
  ncclGroupStart();
  ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
  std::printf("AGAIN %d GROUP %d COUNT %d FINALIZE %d\n", again, ncclGroupEnd(),
              ncclCommCount(ranks.comms[0], &count), ncclCommFinalize(ranks.comms[0]));
  if (how == "exit") return 0;
  const bool waited = ranks.is_waiting();
  if (how == "destroy") {
    std::printf("WAITED %d DESTROYED %d\n", waited, ncclCommDestroy(ranks.comms[0]));
  } else {
    std::thread watchdog(
        [&] { std::printf("WAITED %d ABORTED %d\n", waited, ncclCommAbort(ranks.comms[0])); });
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    watchdog.join();
  }
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  if (graph != nullptr) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  if (buffer != nullptr) REQUIRE_CUDA(cudaFree(buffer));
  ranks.free_all();
  const std::map<int, std::string> left = open_files_soon(files.size());
  std::printf("LEFT OPEN %td\n", std::max<ptrdiff_t>(0, std::ssize(left) - std::ssize(files)));
  for (const auto& [descriptor, file] : left)
    if (!files.contains(descriptor)) std::printf("  %d %s\n", descriptor, file.c_str());
  return 0;
}

// id nranks rank: takes part in the first operation, then does nothing until it is killed.
ROLE(victim) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(1000)) return 1;
  std::printf("READY\n");
  for (;;) pause();
}

// Two survivors that end by `how`, and a victim that is killed once they have started.
std::vector<Process> kill_one_of_three(const std::string& how,
                                       const Process::Environment& environment = {}) {
  const std::string id = to_text(make_id());
  std::vector<Process> survivors;
  for (const char* rank : {"0", "1"})
    survivors.emplace_back("survivor", Arguments{id, "3", rank, how}, environment);
  Process victim("victim", {id, "3", "2"});
  EXPECT_TRUE(victim.wait_for_line("READY")) << victim.output();
  for (Process& survivor : survivors)
    EXPECT_TRUE(survivor.wait_for_line("STARTED")) << survivor.output();
  victim.kill(SIGKILL);
  for (Process& survivor : survivors) EXPECT_EQ(survivor.wait(seconds(30)), 0) << survivor.output();
  return survivors;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class KilledPeer : public testing::TestWithParam<std::string> {};

TEST_P(KilledPeer, LeavesItsOperationsWaiting) {
  for (const Process& survivor : kill_one_of_three(GetParam())) {
    EXPECT_THAT(survivor.output(), HasSubstr("STATE 6"));  // ncclRemoteError
    EXPECT_THAT(survivor.output(), HasSubstr("rank 2"));
    EXPECT_THAT(survivor.output(), HasSubstr("WAITS 1"));
    EXPECT_THAT(survivor.output(), HasSubstr("AGAIN 6 GROUP 6 COUNT 6 FINALIZE 6"));
    if (GetParam() == "exit") continue;
    EXPECT_THAT(survivor.output(), HasSubstr("WAITED 1"));
    EXPECT_THAT(survivor.output(),
                HasSubstr(GetParam() == "destroy" ? "DESTROYED 6" : "ABORTED 0"));
    EXPECT_THAT(survivor.output(), HasSubstr("LEFT OPEN 0"));
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, KilledPeer, testing::Values("abort", "destroy", "graph", "exit"),
                         [](const auto& how) { return how.param; });

TEST(Faults, AKilledPeerEndsTheOperationsOfWhoeverWantsThat) {
  for (const Process& survivor : kill_one_of_three("destroy", {{"NICCOLITE_END_FAILED", "1"}})) {
    EXPECT_THAT(survivor.output(), HasSubstr("STATE 6"));
    EXPECT_THAT(survivor.output(), HasSubstr("WAITS 0"));
    EXPECT_THAT(survivor.output(), HasSubstr("WAITED 0 DESTROYED 6"));
  }
}

// id nranks rank: never asks for the state of its communicator.
ROLE(careless) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(1000)) return 1;
  REQUIRE_NCCL(ranks.start(100'000));
  std::printf("STARTED\n");
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  std::printf("DONE\n");
  return 0;
}

TEST(Faults, AKilledPeerIsPrintedOnceThoughNobodyAsks) {
  const std::string id = to_text(make_id());
  Process careless("careless", {id, "2", "0"});
  Process victim("victim", {id, "2", "1"});
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  ASSERT_TRUE(careless.wait_for_line("STARTED")) << careless.output();
  victim.kill(SIGKILL);
  ASSERT_TRUE(careless.wait_for_line("NCCL WARN")) << careless.output();
  EXPECT_THAT(careless.output(), HasSubstr("rank 1"));
  EXPECT_FALSE(careless.wait_for_line("DONE", seconds(1)));
  EXPECT_EQ(count_of(careless.output(), "NCCL WARN"), 1u) << careless.output();
}

// Uses communicators, and ends them, while the process ends.
struct LateUser {
  std::unique_ptr<LocalRanks> ranks;
  ~LateUser() {
    if (ranks == nullptr) return;
    const bool right = ranks->all_reduce(1000) && ranks->all_reduce(300'000);
    ncclGroupStart();
    for (ncclComm_t comm : ranks->comms) ncclCommFinalize(comm);
    const ncclResult_t finalized = ncclGroupEnd();
    ranks->destroy();
    std::printf("LATE %d %d\n", right, finalized);
    std::fflush(stdout);
  }
};

// Whether it is used before, too.
ROLE(late_user) {
  static LateUser user;  // its destructor comes after those of all that is made from here on
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  user.ranks = std::make_unique<LocalRanks>(id, 2, 0, 2);
  if (arguments[0] == "early" && !user.ranks->all_reduce(10)) return 1;
  return 0;
}

TEST(Faults, CommunicatorsCanBeUsedInStaticDestructors) {
  for (const char* how : {"early", "late"}) {
    Process user("late_user", {how});
    EXPECT_EQ(user.wait(seconds(30)), 0) << user.output();
    EXPECT_THAT(user.output(), HasSubstr("LATE 1 0"));
  }
}

// id nranks rank kind: runs operations of one kind until one fails.
ROLE(worker) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  const auto kind = static_cast<Kind>(std::stoi(arguments[3]));
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  std::vector<std::unique_ptr<Trial>> trials;
  if (kind == Kind::Message) {  // a ring of messages
    for (int from = 0; from < nranks; ++from)
      trials.push_back(std::make_unique<Trial>(
          Operation{kind, ncclFloat, ncclSum, 100'003, from, (from + 1) % nranks}, nranks));
  } else {
    trials.push_back(
        std::make_unique<Trial>(Operation{kind, ncclFloat, ncclSum, 100'003, 1}, nranks));
  }
  ncclResult_t state = ncclSuccess;
  for (int round = 0; state == ncclSuccess; ++round) {
    ncclGroupStart();
    for (const auto& trial : trials)
      if (trial->takes_part(rank)) trial->call(rank, ranks.comms[0], ranks.streams[0]);
    state = ncclGroupEnd();
    if (state == ncclSuccess) state = ranks.finish();
    if (round == 0) std::printf("RUNNING\n");
  }
  std::printf("STATE %d LAST %s\n", state, ncclGetLastError(nullptr));
  std::printf("ABORTED %d\n", ncclCommAbort(ranks.comms[0]));
  return 0;
}

class KilledInside : public testing::TestWithParam<Kind> {};

TEST_P(KilledInside, APeerIsNamedByTheOthers) {
  const std::string id = to_text(make_id()), kind = std::to_string(static_cast<int>(GetParam()));
  std::vector<Process> workers;
  for (int rank = 0; rank < 3; ++rank)
    workers.emplace_back("worker", Arguments{id, "3", std::to_string(rank), kind});
  for (Process& worker : workers) {
    ASSERT_TRUE(worker.wait_for_line("RUNNING")) << worker.output();
  }
  workers[1].kill(SIGKILL);
  for (int survivor : {0, 2}) {
    Process& worker = workers[static_cast<size_t>(survivor)];
    EXPECT_EQ(worker.wait(seconds(30)), 0) << worker.output();
    EXPECT_THAT(worker.output(), HasSubstr("STATE 6"));  // ncclRemoteError
    EXPECT_THAT(worker.output(), HasSubstr("rank 1"));
    EXPECT_THAT(worker.output(), HasSubstr("ABORTED 0"));
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, KilledInside,
                         testing::Values(Kind::AllReduce, Kind::AllToAll, Kind::Broadcast,
                                         Kind::Message),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

// id nranks rank: joins, and reports.
ROLE(joiner) {
  ncclComm_t comm = nullptr;
  REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[2])));
  std::printf("JOINING\n");
  const ncclResult_t result = ncclCommInitRank(&comm, std::stoi(arguments[1]), to_id(arguments[0]),
                                               std::stoi(arguments[2]));
  std::printf("RESULT %d LAST %s\n", result, ncclGetLastError(nullptr));
  return comm == nullptr ? 0 : 1;
}

TEST(Faults, RanksThatNeverComeAreNamed) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "2"}};
  Process first("joiner", {id, "4", "0"}, patience), second("joiner", {id, "4", "3"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), HasSubstr("RESULT 6"));
    EXPECT_THAT(process->output(), HasSubstr("ranks 1, 2"));
    EXPECT_THAT(process->output(), HasSubstr("NCCL_SOCKET_IFNAME"));
  }
}

TEST(Faults, APeerKilledDuringInitDoesNotLeaveTheOthersWaiting) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "5"}};
  Process first("joiner", {id, "3", "0"}, patience), second("joiner", {id, "3", "1"}, patience);
  ASSERT_TRUE(second.wait_for_line("JOINING"));
  second.kill(SIGKILL);
  EXPECT_EQ(first.wait(seconds(30)), 0) << first.output();
  EXPECT_THAT(first.output(), HasSubstr("RESULT 6 "));
}

TEST(Faults, TwoRanksThatClaimOneNumberAreToldApart) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "10"}};
  Process first("joiner", {id, "2", "1"}, patience), second("joiner", {id, "2", "1"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), HasSubstr("RESULT 5 "));  // ncclInvalidUsage
    EXPECT_THAT(process->output(), HasSubstr("two callers claim rank 1 of 2: "));
  }
}

TEST(Faults, RanksThatDisagreeOnTheirNumberAreTold) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "10"}};
  Process first("joiner", {id, "2", "0"}, patience), second("joiner", {id, "3", "1"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), HasSubstr("RESULT 5 "));  // ncclInvalidUsage
    // Which of them is told of the other depends on who comes first.
    EXPECT_THAT(
        process->output(),
        testing::AnyOf(
            testing::ContainsRegex("rank 1 .* was called with 3 ranks, rank 0 .* with 2;"),
            testing::ContainsRegex("rank 0 .* was called with 2 ranks, rank 1 .* with 3;")));
  }
}

TEST(Faults, AnIdWithAnotherSecretDoesNotGetIn) {
  const ncclUniqueId id = make_id();
  ncclUniqueId other = make_id();
  // The address of the one, the secret of the other.
  std::copy(std::begin(id.internal), std::begin(id.internal) + 32, std::begin(other.internal));
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "3"}};
  Process stranger("joiner", {to_text(other), "2", "1"}, patience);
  EXPECT_EQ(stranger.wait(seconds(30)), 0) << stranger.output();
  EXPECT_THAT(stranger.output(), HasSubstr("RESULT 6 "));
}

/// The signal at which ranks begin, blocked from now on.
sigset_t block_start() {
  sigset_t start;
  sigemptyset(&start);
  sigaddset(&start, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &start, nullptr);
  return start;
}

/// Rank 1 says that it lacks descriptors; the others begin after that.
void lack_or_await(int rank, const sigset_t& start) {
  int signal;
  if (rank != 1) {
    sigwait(&start, &signal);
    return;
  }
  std::printf("LACKS\n");
  std::fflush(stdout);
}

[[noreturn]] void tell_result(ncclResult_t result) {
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  std::fflush(stdout);
  for (;;) pause();  // its end is another reason
}

// id nranks rank what: rank 1 lacks descriptors in `what`, which is the first call after init or
// comes after an all-reduce, and says what all ranks see.
ROLE(lacks_descriptors) {
  const sigset_t start = block_start();
  const int rank = std::stoi(arguments[2]);
  const std::string what = arguments[3];
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), rank, 1);
  if (what != "connect" && !ranks.all_reduce(1000)) return 1;
  void* buffer = nullptr;
  constexpr size_t kBytes = 1 << 20;
  REQUIRE_NCCL(ncclMemAlloc(&buffer, kBytes));
  std::optional<NoDescriptors> lack;
  if (rank == 1) lack.emplace();
  lack_or_await(rank, start);
  ncclResult_t result = ncclSuccess;
  if (what == "connect") {
    result = ranks.start(1000);
    if (result == ncclSuccess) result = ranks.finish();
  } else if (what == "split") {
    ncclComm_t half = nullptr;
    result = ncclCommSplit(ranks.comms[0], 0, -rank, &half, nullptr);
    std::swap(half, ranks.comms[0]);
    if (result == ncclSuccess) result = ranks.start(1000);
    if (result == ncclSuccess) result = ranks.finish();
  } else {
    ncclWindow_t window = nullptr;
    result = ncclCommWindowRegister(ranks.comms[0], buffer, kBytes, &window, 0);
  }
  lack.reset();
  tell_result(result);
}

// id rank: rank 1 of 3 listens, since it has sent to rank 2; then it has no descriptor left, and
// rank 0 sends to it.
ROLE(cannot_accept) {
  const sigset_t start = block_start();
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 3, rank, 1);
  float* buffer = nullptr;
  constexpr size_t kCount = 16 << 20;  // more than a connection's slots hold
  REQUIRE_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
  const auto pass = [&](int from, int to) {
    if (rank == from)
      REQUIRE_NCCL(ncclSend(buffer, kCount, ncclFloat, to, ranks.comms[0], ranks.streams[0]));
    if (rank == to)
      REQUIRE_NCCL(ncclRecv(buffer, kCount, ncclFloat, from, ranks.comms[0], ranks.streams[0]));
    return ranks.finish();
  };
  if (pass(1, 2) != ncclSuccess) return 1;
  std::optional<FullDescriptors> full;
  if (rank == 1) full.emplace();
  lack_or_await(rank, start);
  tell_result(pass(0, 1));
}

void start_others(std::vector<Process>& processes) {
  ASSERT_TRUE(processes[1].wait_for_line("LACKS", seconds(20))) << processes[1].output();
  for (const size_t rank : {0, 2}) processes[rank].kill(SIGUSR1);
}

struct Lack {
  const char* name;
  const char* what;
  bool has_machines;  // each rank is one
};
class LackOfDescriptors : public testing::TestWithParam<Lack> {};

// By the rank whose call it is; a window is everybody's.
TEST_P(LackOfDescriptors, AfterInitIsToldAsThat) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (const char* rank : {"0", "1", "2"}) {
    Process::Environment environment;
    if (GetParam().has_machines) environment["NCCL_HOSTID"] = std::string("machine") + rank;
    processes.emplace_back("lacks_descriptors", Arguments{id, "3", rank, GetParam().what},
                           environment);
  }
  ASSERT_NO_FATAL_FAILURE(start_others(processes));
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    if (rank != 1 && GetParam().what != std::string("register")) continue;
    EXPECT_TRUE(processes[rank].wait_for_line("RESULT ", seconds(20))) << processes[rank].output();
    EXPECT_THAT(processes[rank].output(), testing::Not(HasSubstr("RESULT 0")));
    EXPECT_THAT(processes[rank].output(),
                testing::ContainsRegex("RESULT .*(no file descriptor left|Too many open files)"));
  }
}

TEST(LackOfDescriptorsOfAListener, IsToldToWhoConnectsAndInItsOwnLog) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (const char* rank : {"0", "1", "2"})
    processes.emplace_back("cannot_accept", Arguments{id, rank},
                           Process::Environment{{"NCCL_HOSTID", std::string("machine") + rank}});
  ASSERT_NO_FATAL_FAILURE(start_others(processes));
  EXPECT_TRUE(processes[0].wait_for_line("RESULT ", seconds(20))) << processes[0].output();
  EXPECT_THAT(processes[0].output(), HasSubstr("its process has no file descriptor left"));
  EXPECT_TRUE(processes[1].wait_for_line("descriptors are too few for the connections from other"))
      << processes[1].output();
}

INSTANTIATE_TEST_SUITE_P(Faults, LackOfDescriptors,
                         testing::Values(Lack{"Connect", "connect", false},
                                         Lack{"ConnectMachines", "connect", true},
                                         Lack{"Split", "split", false},
                                         Lack{"SplitMachines", "split", true},
                                         Lack{"Register", "register", false}),
                         [](const auto& instance) { return instance.param.name; });

// Rank 0 of two that invites a newcomer, and then grows though rank 1 is dead.
ROLE(grows_too_late) {
  LocalRanks ranks(to_id(arguments[0]), 2, std::stoi(arguments[1]), 1);
  if (ranks.comms.empty() || !ranks.all_reduce(100)) return 1;
  std::printf("READY\n");
  std::fflush(stdout);
  if (arguments[1] != "0") std::this_thread::sleep_for(std::chrono::hours(1));
  ncclUniqueId id;
  REQUIRE_NCCL(ncclCommGetUniqueId(ranks.comms[0], &id));
  std::printf("ID %s\n", to_text(id).c_str());
  std::fflush(stdout);
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &error));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ncclComm_t grown = nullptr;
  std::printf("GREW %d\n", ncclCommGrow(ranks.comms[0], 3, nullptr, -1, &grown, nullptr));
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::hours(1));  // the root is here
  return 1;
}

ROLE(newcomer) {
  REQUIRE_CUDA(cudaSetDevice(2));
  const ncclUniqueId id = to_id(arguments[0]);
  ncclComm_t grown = nullptr;
  const ncclResult_t result = ncclCommGrow(nullptr, 3, &id, 2, &grown, nullptr);
  std::printf("NEWCOMER %d %s\n", result, ncclGetLastError(nullptr));
  return result == ncclRemoteError ? 0 : 1;
}

TEST(Growth, ThatAMemberCannotTakePartInFailsForTheNewcomer) {
  const ncclUniqueId id = make_id();
  std::vector<Process> members;
  for (const char* rank : {"0", "1"})
    members.emplace_back("grows_too_late", Arguments{to_text(id), rank});
  ASSERT_TRUE(members[0].wait_for_line("ID ")) << members[0].output();
  ASSERT_TRUE(members[1].wait_for_line("READY")) << members[1].output();
  const std::string& output = members[0].output();
  const size_t begin = output.find("ID ") + 3;
  Process newcomer("newcomer", Arguments{output.substr(begin, output.find('\n', begin) - begin)},
                   Process::Environment{{"NCCL_DEBUG", "INFO"}});
  ASSERT_TRUE(newcomer.wait_for_line("have not joined")) << newcomer.output();
  members[1].kill(SIGKILL);
  EXPECT_TRUE(members[0].wait_for_line("GREW 6")) << members[0].output();
  EXPECT_EQ(newcomer.wait(), 0) << newcomer.output();
  EXPECT_THAT(newcomer.output(), HasSubstr("rank 1 (process "));
}

}  // namespace
}  // namespace niccolite::test
