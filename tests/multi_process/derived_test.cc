// Communicators made from communicators whose ranks are in several processes.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/api/working.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

ncclUniqueId make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return id;
}

/// Of a role: what its EXPECTs came to.
int outcome() { return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0; }

/// This process' ranks of a communicator whose ranks are on the devices `devices`.
struct Family {
  std::vector<ncclComm_t> comms;
  std::vector<int> devices;

  void expect_works() const { test::expect_works(comms, devices); }
  void destroy() const {
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  int device(size_t local) const { return RankAtWork::device_of(comms[local]); }

  /// By color and key of devices; what this process has of each color.
  std::map<int, Family> split(const std::function<int(int)>& color,
                              const std::function<int(int)>& key) const {
    std::vector<ncclComm_t> made(comms.size());
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < comms.size(); ++i)
      EXPECT_NCCL(ncclCommSplit(comms[i], color(device(i)), key(device(i)), &made[i], nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    std::map<int, Family> children;
    for (size_t i = 0; i < comms.size(); ++i)
      if (made[i] != nullptr) children[color(device(i))].comms.push_back(made[i]);
    for (auto& [of_color, family] : children) {
      for (const int of : devices)
        if (color(of) == of_color) family.devices.push_back(of);
      std::stable_sort(family.devices.begin(), family.devices.end(),
                       [&](int a, int b) { return key(a) < key(b); });
    }
    return children;
  }
};

// id nranks first count: splits and splits of splits; ends parents before and after children.
ROLE(splitter) {
  const int nranks = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), nranks, std::stoi(arguments[2]), std::stoi(arguments[3]));
  Family all{ranks.comms, {}};
  for (int rank = 0; rank < nranks; ++rank) all.devices.push_back(rank);
  all.expect_works();
  std::vector<Family> kept;
  for (int round = 0; round < 4; ++round) {
    auto children = all.split([&](int device) { return (device + round) % 3 % 2; },
                              [&](int device) { return round % 2 == 0 ? -device : device; });
    for (const auto& [color, child] : children) {
      child.expect_works();
      for (const auto& [of, grandchild] :
           child.split([](int device) { return device % 2 == 0 ? 5 : NCCL_SPLIT_NOCOLOR; },
                       [](int device) { return device; })) {
        grandchild.expect_works();
        kept.push_back(grandchild);
      }
      child.destroy();
    }
    all.expect_works();
  }
  ranks.destroy();  // and every child before: the grandchildren stay
  for (const Family& family : kept) family.expect_works();
  for (const Family& family : kept) family.destroy();
  std::printf("SPLIT\n");
  return outcome();
}

// id nranks rank victim: loses rank `victim`, and goes on without it.
ROLE(shrinker) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  int victim = std::stoi(arguments[3]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  if (!ranks.all_reduce(1000)) return 1;
  if (rank != 0 && rank != victim) REQUIRE_NCCL(ranks.start(100'000));  // never ends by itself
  std::printf("READY\n");
  if (rank == victim)
    for (;;) pause();
  Family rest;
  for (int other = 0; other < nranks; ++other)
    if (other != victim) rest.devices.push_back(other);
  while (settled(ranks.comms[0]) == ncclSuccess) std::this_thread::yield();
  std::printf("FAILED\n");
  ncclComm_t made = nullptr;
  REQUIRE_NCCL(ncclCommShrink(ranks.comms[0], &victim, 1, &made, nullptr, NCCL_SHRINK_ABORT));
  EXPECT_NCCL(ncclCommAbort(ranks.comms[0]));
  rest.comms = {made};
  rest.expect_works();
  rest.destroy();
  std::printf("SHRUNK\n");
  return outcome();
}

TEST(Shrink, GoesOnWithoutAKilledProcess) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank)
    processes.emplace_back("shrinker", Arguments{id, "4", std::to_string(rank), "2"});
  for (Process& process : processes) ASSERT_TRUE(process.wait_for_line("READY"));
  processes[2].kill(SIGKILL);
  for (const size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(processes[rank].wait(), 0) << processes[rank].output();
    EXPECT_THAT(processes[rank].output(), HasSubstr("SHRUNK"));
  }
}

// id nranks rank first: the last rank is killed; the others shrink without it, before they have
// seen its loss ("shrink") or after ("loss"), and ask the parent how it is.
ROLE(outlives) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  const bool shrinks_first = arguments[3] == "shrink";
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  if (!ranks.all_reduce(1000)) return 1;
  std::printf("READY\n");
  int last = nranks - 1;
  if (rank == last)
    for (;;) pause();
  Family rest;
  for (int other = 0; other < last; ++other) rest.devices.push_back(other);
  ncclComm_t made = nullptr;
  if (!shrinks_first)
    while (settled(ranks.comms[0]) == ncclSuccess) std::this_thread::yield();
  REQUIRE_NCCL(ncclCommShrink(ranks.comms[0], &last, 1, &made, nullptr, NCCL_SHRINK_DEFAULT));
  std::printf("SHRUNK\n");
  rest.comms = {made};
  rest.expect_works();
  // The parent takes no operations as soon as it has seen the loss, which is no failure of it.
  // (Those that it took before wait: nothing may be asked of the stream or of the default one.)
  int* word = nullptr;
  REQUIRE_CUDA(cudaMalloc(&word, sizeof *word));
  while (ncclAllReduce(word, word, 1, ncclInt, ncclSum, ranks.comms[0], ranks.streams[0]) ==
         ncclSuccess)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(settled(ranks.comms[0]), ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(ranks.comms[0]));
  REQUIRE_CUDA(cudaFree(word));
  rest.expect_works();
  rest.destroy();
  std::printf("OUTLIVED\n");
  return outcome();
}

class Outlived : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Outlived, ALossThatAShrinkLeftOutIsNoFailureOfTheParent) {
  const auto [nranks, first] = GetParam();
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (int rank = 0; rank < nranks; ++rank)
    processes.emplace_back("outlives",
                           Arguments{id, std::to_string(nranks), std::to_string(rank), first});
  const bool shrinks_first = std::string(first) == "shrink";
  for (int rank = 0; rank < nranks; ++rank) {
    const bool stays = rank + 1 < nranks;
    Process& process = processes[static_cast<size_t>(rank)];
    ASSERT_TRUE(process.wait_for_line(stays && shrinks_first ? "SHRUNK" : "READY"));
  }
  processes.back().kill(SIGKILL);
  for (int rank = 0; rank + 1 < nranks; ++rank) {
    Process& process = processes[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("OUTLIVED"));
  }
}

INSTANTIATE_TEST_SUITE_P(Shrink, Outlived,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Values("loss", "shrink")));

// id nranks rank: all but the last rank shrink without the last but one, which nobody has told.
ROLE(dies_in_shrink) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  if (!ranks.all_reduce(1000)) return 1;
  std::printf("READY\n");
  if (rank >= nranks - 2)
    for (;;) pause();
  std::vector<int> list = {nranks - 2};
  ncclComm_t made = nullptr;
  const ncclResult_t result =
      ncclCommShrink(ranks.comms[0], list.data(), 1, &made, nullptr, NCCL_SHRINK_DEFAULT);
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  list.push_back(nranks - 1);
  REQUIRE_NCCL(ncclCommShrink(ranks.comms[0], list.data(), 2, &made, nullptr, NCCL_SHRINK_ABORT));
  Family rest{{made}, {}};
  for (int other = 0; other < nranks - 2; ++other) rest.devices.push_back(other);
  rest.expect_works();
  std::printf("SHRUNK\n");
  rest.destroy();
  EXPECT_NCCL(ncclCommAbort(ranks.comms[0]));
  return outcome();
}

TEST(Shrink, FailsOnAllWhenOneThatStaysDiesAndCanBeRepeatedWithoutIt) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (int rank = 0; rank < 5; ++rank)
    processes.emplace_back("dies_in_shrink", Arguments{id, "5", std::to_string(rank)});
  for (Process& process : processes) ASSERT_TRUE(process.wait_for_line("READY"));
  processes[4].kill(SIGKILL);
  for (const size_t rank : {0u, 1u, 2u}) {
    EXPECT_EQ(processes[rank].wait(), 0) << processes[rank].output();
    EXPECT_THAT(processes[rank].output(), HasSubstr("RESULT 6"));
    EXPECT_THAT(processes[rank].output(), HasSubstr("SHRUNK"));
  }
}

// id nranks rank: the last rank comes to each call that needs all of them later than initialization
// would wait.
ROLE(comes_later_than_init) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  const auto be_late = [&] {
    if (rank == nranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  };
  be_late();
  ncclComm_t child = nullptr;
  REQUIRE_NCCL(ncclCommSplit(ranks.comms[0], 0, rank, &child, nullptr));
  REQUIRE_NCCL(ncclCommDestroy(child));
  be_late();
  REQUIRE_NCCL(ncclCommSuspend(ranks.comms[0], NCCL_SUSPEND_MEM));
  be_late();
  REQUIRE_NCCL(ncclCommResume(ranks.comms[0]));
  be_late();
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(&memory, 1 << 20));
  REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[0], memory, 1 << 20, &window, NCCL_WIN_DEFAULT));
  REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[0], window));
  REQUIRE_NCCL(ncclMemFree(memory));
  if (!ranks.all_reduce(1000)) return 1;
  ranks.destroy();
  return 0;
}

TEST(Derived, AndOtherCallsWaitForALateRankAsOperationsDo) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.emplace_back("comes_later_than_init", Arguments{id, "2", std::to_string(rank)},
                           Process::Environment{{"NICCOLITE_INIT_TIMEOUT", "1"}});
  for (Process& process : processes) EXPECT_EQ(process.wait(), 0) << process.output();
}

// id nranks rank leaver: rank `leaver` keeps a child and leaves; the others want to shrink without
// the last rank, which `leaver` is not.
ROLE(shrinks_with_a_leaver) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  ncclComm_t child = nullptr;
  REQUIRE_NCCL(ncclCommSplit(ranks.comms[0], 0, rank, &child, nullptr));
  if (rank == std::stoi(arguments[3])) {
    ranks.destroy();
    std::printf("LEFT\n");
    for (;;) pause();
  }
  int last = nranks - 1;
  if (rank == last)
    for (;;) pause();
  ncclComm_t made = nullptr;
  const ncclResult_t result =
      ncclCommShrink(ranks.comms[0], &last, 1, &made, nullptr, NCCL_SHRINK_DEFAULT);
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  std::fflush(stdout);
  for (;;) pause();  // leaves nobody to hear of another end
}

// Not every process has a link to the one that was left: whoever knows tells.
TEST(Shrink, NamesARankThatHasLeftToAll) {
  for (const int nranks : {3, 6}) {
    const std::string id = to_text(make_id());
    const int leaver = nranks / 2;
    std::vector<Process> processes;
    for (int rank = 0; rank < nranks; ++rank)
      processes.emplace_back(
          "shrinks_with_a_leaver",
          Arguments{id, std::to_string(nranks), std::to_string(rank), std::to_string(leaver)});
    for (int rank = 0; rank + 1 < nranks; ++rank) {
      Process& process = processes[static_cast<size_t>(rank)];
      if (rank == leaver) continue;
      ASSERT_TRUE(process.wait_for_line("RESULT")) << nranks << ": " << process.output();
      EXPECT_THAT(process.output(), HasSubstr("RESULT 6"));
      EXPECT_THAT(process.output(), HasSubstr("rank " + std::to_string(leaver) + " "));
    }
  }
}

/// What a call on a nonblocking communicator that has returned `begun` comes to.
ncclResult_t outcome_of(ncclResult_t begun, ncclComm_t comm) {
  return begun == ncclInProgress ? settled(comm) : begun;
}

// id nranks rank: a nonblocking communicator loses its last rank and is shrunk in the background.
ROLE(shrinks_in_background) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  REQUIRE_CUDA(cudaSetDevice(rank));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&comm, nranks, to_id(arguments[0]), rank, &config);
  if (begun != ncclInProgress || settled(comm) != ncclSuccess) return 1;
  Family{{comm}, {0, 1, 2}}.expect_works();
  std::printf("READY\n");
  int last = nranks - 1;
  if (rank == last)
    for (;;) pause();
  while (settled(comm) == ncclSuccess) std::this_thread::yield();
  ncclComm_t made = nullptr;
  EXPECT_EQ(ncclCommShrink(comm, &last, 1, &made, nullptr, NCCL_SHRINK_ABORT), ncclInProgress);
  EXPECT_EQ(settled(comm), ncclSuccess);  // the child is there, and the loss has been dealt with
  EXPECT_NE(made, nullptr);
  EXPECT_EQ(settled(made), ncclSuccess);
  const Family rest{{made}, {0, 1}};
  rest.expect_works();
  // The parent takes no operations, and is none the worse for having been asked.
  int* word = nullptr;
  REQUIRE_CUDA(cudaMalloc(&word, sizeof *word));
  EXPECT_EQ(outcome_of(ncclAllReduce(word, word, 1, ncclInt, ncclSum, comm, nullptr), comm),
            ncclRemoteError);
  EXPECT_EQ(settled(comm), ncclSuccess);
  REQUIRE_CUDA(cudaFree(word));
  // A split needs all ranks. That it has failed is told until the parent is shrunk again.
  ncclComm_t again = nullptr;
  EXPECT_EQ(ncclCommSplit(comm, 0, rank, &again, nullptr), ncclInProgress);
  EXPECT_EQ(settled(comm), ncclRemoteError);
  EXPECT_EQ(ncclCommSplit(comm, 0, rank, &again, nullptr), ncclRemoteError);
  EXPECT_EQ(again, nullptr);
  EXPECT_EQ(ncclCommShrink(comm, &last, 1, &again, nullptr, NCCL_SHRINK_DEFAULT), ncclInProgress);
  EXPECT_EQ(settled(comm), ncclSuccess);
  const Family others{{again}, {0, 1}};
  others.expect_works();
  others.destroy();
  EXPECT_NCCL(ncclCommDestroy(comm));
  rest.destroy();
  std::printf("SHRUNK\n");
  return outcome();
}

TEST(Shrink, OfAFailedNonblockingParentIsInProgressUntilTheChildIsThere) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back("shrinks_in_background", Arguments{id, "3", std::to_string(rank)});
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("READY")) << process.output();
  processes[2].kill(SIGKILL);
  for (const size_t rank : {0u, 1u}) {
    EXPECT_EQ(processes[rank].wait(), 0) << processes[rank].output();
    EXPECT_THAT(processes[rank].output(), HasSubstr("SHRUNK"));
  }
}

// id rank: two ranks want to grow, but rank 1 is killed before it has invited anybody.
ROLE(waits_for_an_invitation) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  if (!ranks.all_reduce(1000)) return 1;
  std::printf("READY\n");
  if (rank == 1)
    for (;;) pause();
  ncclComm_t made = nullptr;
  const ncclResult_t result = ncclCommGrow(ranks.comms[0], 3, nullptr, -1, &made, nullptr);
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  return 0;
}

TEST(Grow, EndsWhenAMemberDies) {
  const std::string id = to_text(make_id());
  std::vector<Process> members;
  for (const char* rank : {"0", "1"})
    members.emplace_back("waits_for_an_invitation", Arguments{id, rank});
  for (Process& member : members) ASSERT_TRUE(member.wait_for_line("READY")) << member.output();
  members[1].kill(SIGKILL);
  EXPECT_EQ(members[0].wait(), 0) << members[0].output();
  EXPECT_THAT(members[0].output(), HasSubstr("RESULT 6"));
  EXPECT_THAT(members[0].output(), HasSubstr("rank 1 (process"));
}

// id nranks rank: splits, shrinks and grows for ever; rank 0 brings the newcomer along. Says what
// went wrong.
ROLE(changes_for_ever) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  const auto require = [&ranks](ncclResult_t result) {
    if (result == ncclSuccess) return;
    std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
    std::fflush(stdout);
    ranks.abort();  // who has not heard of the end waits for this rank
    for (;;) pause();
  };
  ncclComm_t comm = ranks.comms[0];
  for (bool is_first = true;; is_first = false) {
    ncclComm_t child = nullptr;
    require(ncclCommSplit(comm, rank == 1 ? 1 : 0, -rank, &child, nullptr));
    require(ncclCommDestroy(child));
    if (rank != 1) {
      int one = 1;
      require(ncclCommShrink(comm, &one, 1, &child, nullptr, NCCL_SHRINK_DEFAULT));
      require(ncclCommDestroy(child));
    }
    ncclComm_t newcomer = nullptr;
    if (rank == 0) {
      ncclUniqueId id;
      require(ncclCommGetUniqueId(comm, &id));
      require(ncclGroupStart());
      require(ncclCommGrow(comm, nranks + 1, nullptr, -1, &child, nullptr));
      REQUIRE_CUDA(cudaSetDevice(nranks));
      require(ncclCommGrow(nullptr, nranks + 1, &id, nranks, &newcomer, nullptr));
      require(ncclGroupEnd());
      require(ncclCommDestroy(newcomer));
    } else {
      require(ncclCommGrow(comm, nranks + 1, nullptr, -1, &child, nullptr));
    }
    require(ncclCommDestroy(child));
    if (is_first) {
      std::printf("READY\n");
      std::fflush(stdout);
    }
  }
}

// Whatever phase of a change a rank is killed in, the others hear of it, and none of them waits.
TEST(Derived, AKillInAnyPhaseEndsTheCallsOfTheOthers) {
  constexpr int kRanks = 4, kKills = 24;
  for (int kill = 0; kill < kKills; ++kill) {
    const std::string id = to_text(make_id());
    std::vector<Process> processes;
    for (int rank = 0; rank < kRanks; ++rank)
      processes.emplace_back("changes_for_ever",
                             Arguments{id, std::to_string(kRanks), std::to_string(rank)});
    for (Process& process : processes)
      ASSERT_TRUE(process.wait_for_line("READY")) << process.output();
    std::this_thread::sleep_for(std::chrono::microseconds(397 * kill));  // spread over the phases
    const size_t victim = static_cast<size_t>(kill) % kRanks;
    processes[victim].kill(SIGKILL);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      ASSERT_TRUE(processes[rank].wait_for_line("RESULT"))
          << "kill " << kill << ", rank " << rank << ": " << processes[rank].output();
    }
  }
}

// id nranks rank member: grows from 2 to 4.
ROLE(grower) {
  const int rank = std::stoi(arguments[1]);
  const ncclUniqueId id = to_id(arguments[0]);
  ncclComm_t made = nullptr;
  REQUIRE_CUDA(cudaSetDevice(rank));
  if (rank >= 2) {
    REQUIRE_NCCL(ncclCommGrow(nullptr, 4, &id, rank, &made, nullptr));
  } else {
    LocalRanks ranks(id, 2, rank, 1);
    if (rank == 0) {
      ncclUniqueId meeting;
      REQUIRE_NCCL(ncclCommGetUniqueId(ranks.comms[0], &meeting));
      std::printf("ID %s.\n", to_text(meeting).c_str());
    }
    REQUIRE_NCCL(ncclCommGrow(ranks.comms[0], 4, nullptr, -1, &made, nullptr));
    ranks.destroy();
  }
  const Family all{{made}, {0, 1, 2, 3}};
  all.expect_works();
  all.destroy();
  std::printf("GROWN\n");
  return outcome();
}

TEST(Grow, TakesInOtherProcesses) {
  const std::string id = to_text(make_id());
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"}) processes.emplace_back("grower", Arguments{id, rank});
  ASSERT_TRUE(processes[0].wait_for_line("ID ")) << processes[0].output();
  const std::string& output = processes[0].output();
  const std::string meeting = output.substr(output.find("ID ") + 3, 2 * NCCL_UNIQUE_ID_BYTES);
  for (const char* rank : {"3", "2"}) processes.emplace_back("grower", Arguments{meeting, rank});
  for (Process& process : processes) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("GROWN"));
  }
}

using Placement = std::vector<std::pair<int, int>>;  // first rank, count
class SplitInProcesses : public testing::TestWithParam<Placement> {};

TEST_P(SplitInProcesses, WorksThroughGenerations) {
  const std::string id = to_text(make_id());
  const Placement& placement = GetParam();
  const int nranks = placement.back().first + placement.back().second;
  std::vector<Process> processes;
  for (const auto& [first, count] : placement)
    processes.emplace_back("splitter", Arguments{id, std::to_string(nranks), std::to_string(first),
                                                 std::to_string(count)});
  for (Process& process : processes) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("SPLIT"));
  }
}

INSTANTIATE_TEST_SUITE_P(Derived, SplitInProcesses,
                         testing::Values(Placement{{0, 1}, {1, 1}, {2, 1}},
                                         Placement{{0, 2}, {2, 2}},
                                         Placement{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}},
                                         Placement{{0, 3}, {3, 1}, {4, 2}, {6, 1}}));

}  // namespace
}  // namespace niccolite::test
