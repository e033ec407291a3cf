// Ranks in several processes: exchange, deaths in each phase, mistakes of the caller.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/socket.h"
#include "child.h"
#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Child> spawn(const std::string& scenario, const UniqueId& id, int nranks,
                         const std::vector<std::vector<int>>& processes, int argument = 0,
                         int timeout = 20'000) {
  std::vector<Child> children;
  for (const auto& ranks : processes)
    children.emplace_back(ChildOptions{.scenario = scenario,
                                       .id = id,
                                       .nranks = nranks,
                                       .ranks = ranks,
                                       .argument = argument,
                                       .timeout_milliseconds = timeout});
  return children;
}

std::vector<std::vector<int>> one_rank_each(int n) {
  std::vector<std::vector<int>> processes;
  for (int rank = 0; rank < n; ++rank) processes.push_back({rank});
  return processes;
}

// Reads lines up to one that begins with `start`.
std::string await(Child& child, const std::string& start) {
  for (std::string line = child.line(); !line.empty(); line = child.line())
    if (line.starts_with(start)) return line;
  return "(nothing)";
}

// Reads lines up to one that has `part`. Each warning of the log comes after an empty one.
std::string await_part(Child& child, const std::string& part,
                       std::chrono::milliseconds patience = 25s) {
  bool was_empty = false;
  while (true) {
    const std::string line = child.line(patience);
    if (line.find(part) != std::string::npos) return line;
    if (line.empty() && std::exchange(was_empty, true)) return "(nothing)";
    if (!line.empty()) was_empty = false;
  }
}

// As NCCL_COMM_ID gives it: the root is in the process of rank 0.
UniqueId free_environment_id() {
  // A free port: the system's choice for a listener that is closed again.
  const uint16_t port = Socket::listen(Address::parse("127.0.0.1:1").value().with_port(0))
                            .value()
                            .local_address()
                            .value()
                            .port();
  return UniqueId::from_environment(fmt::format("127.0.0.1:{}", port), AF_UNSPEC).value();
}

struct Placement {
  const char* name;
  int nranks;
  std::vector<std::vector<int>> processes;
};

class Processes : public testing::TestWithParam<Placement> {};

TEST_P(Processes, ExchangeEverything) {
  const Placement& placement = GetParam();
  auto children = spawn("exchange", loopback_id(), placement.nranks, placement.processes);
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0) << testing::PrintToString(lines);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bootstrap, Processes,
    testing::Values(Placement{"TwoProcesses", 2, {{0}, {1}}},
                    Placement{"Three", 3, {{0}, {1}, {2}}},
                    Placement{"Five", 5, {{0}, {1}, {2}, {3}, {4}}},
                    Placement{"FourOfTwoRanks", 8, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
                    Placement{"Interleaved", 6, {{5, 1}, {0, 4}, {2, 3}}},
                    Placement{"OneLargeOneSmall",
                              17,
                              {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {16}}}),
    [](const auto& instance) { return instance.param.name; });

TEST(DeathOfAProcess, DuringJoinIsToldToAllWhoWait) {
  auto children = spawn("join", loopback_id(), 4, {{0}, {1}, {2}});  // rank 3 never comes
  for (Child& child : children) await(child, "joining");
  // The victim must have been seen by the root; joining a second of its kind would tell, but its
  // death must be told either way.
  Child& victim = children[1];
  EXPECT_THAT(victim.line(300ms), IsEmpty());
  victim.kill_hard();
  for (int survivor : {0, 2})
    EXPECT_THAT(await(children[static_cast<size_t>(survivor)], "rank"),
                AllOf(HasSubstr("remote error: peer 1"), HasSubstr("rank 1"),
                      HasSubstr("ended unexpectedly")));
}

TEST(DeathOfAProcess, WhileIdleIsToldToAll) {
  auto children = spawn("idle", loopback_id(), 6, {{0}, {1}, {2, 5}, {3}, {4}}, 3);
  for (Child& child : children) await(child, "idle");
  children[3].kill_hard();
  for (size_t i : {0u, 1u, 2u, 4u}) {
    const auto lines = children[i].rest();
    EXPECT_EQ(children[i].wait(), 0);
    EXPECT_THAT(lines, testing::Contains(AllOf(HasSubstr("lost 3: remote error: peer 3"),
                                               HasSubstr("rank 3 (process"),
                                               HasSubstr("ended unexpectedly"))));
    EXPECT_THAT(lines, testing::Contains(AllOf(HasSubstr("gathers: remote error: peer 3"))));
    EXPECT_THAT(lines, testing::Contains(AllOf(HasSubstr("sends: remote error: peer 3"))));
  }
}

TEST(DeathOfAProcess, DuringAnAllGatherEndsItNamingTheRank) {
  auto children = spawn("gather", loopback_id(), 7, one_rank_each(7), 2);
  for (Child& child : children) await(child, "gathering");
  children[2].kill_hard();
  for (size_t i : {0u, 1u, 3u, 4u, 5u, 6u}) {
    const std::string line = await(children[i], "rank");
    EXPECT_THAT(line, AllOf(HasSubstr("remote error: peer 2"), HasSubstr("rank 2 (process")));
    EXPECT_EQ(children[i].wait(), 0);
  }
}

// fork() withholds the connections from a child; a call of the kernel that makes one does not.
TEST(DeathOfAProcess, IsToldThoughAChildHoldsItsConnectionsOpen) {
  auto children = spawn("heir", loopback_id(), 4, one_rank_each(4), 2);
  const pid_t heir = std::stoi(await(children[2], "heir ").substr(5));
  for (Child& child : children) await(child, "idle");
  children[2].kill_hard();
  for (size_t i : {0u, 1u, 3u})
    EXPECT_THAT(await(children[i], "rank"),
                AllOf(HasSubstr("lost 2: remote error: peer 2"), HasSubstr("rank 2 (process"),
                      HasSubstr("ended unexpectedly: connection closed")));
  EXPECT_EQ(kill(heir, SIGKILL), 0) << "the child was gone before";
}

// The program of rank 0 ends when its call has failed; rank 2 comes then.
TEST(ShortageOfDescriptors, OfTheRootIsToldToThoseThatComeWhileItsProcessExits) {
  Child root({.scenario = "short", .id = loopback_id(), .nranks = 3, .ranks = {0}});
  const UniqueId id = from_hex(await(root, "id ").substr(3));
  await(root, "short");
  const auto start = [&](int rank) {
    return Child({.scenario = "join", .id = id, .nranks = 3, .ranks = {rank}});
  };
  Child first = start(1);
  EXPECT_THAT(await(first, "rank 1"), HasSubstr("lets no more ranks in"));
  EXPECT_THAT(await(root, "rank 0"), HasSubstr("lets no more ranks in"));
  Child late = start(2);
  EXPECT_THAT(await(late, "rank 2"), HasSubstr("lets no more ranks in"));
  root.rest();
  EXPECT_EQ(root.wait(), 0);
}

// A rank may be stopped between its call and the moment in which its word is on its way.
TEST(StopOfAProcess, DuringAnAllGatherIsToldByAllOnceWhoWait) {
  setenv("NCCL_DEBUG", "WARN", 1);  // of the children; nothing else here is to be said
  auto children = spawn("gather", loopback_id(), 5, {{0}, {1, 3}, {2, 4}}, 2);
  unsetenv("NCCL_DEBUG");
  for (Child& child : children) await(child, "gathering");
  children[2].stop();
  for (size_t i : {0u, 1u}) {
    EXPECT_THAT(await_part(children[i], "stands still"),
                AllOf(HasSubstr("NCCL WARN the test stands still: ranks 2, 4 (process"),
                      HasSubstr(") are stopped, by a signal")));
    // Though two ranks of one process wait, and go on waiting.
    EXPECT_EQ(await_part(children[i], "stands still", 600ms), "(nothing)");
  }
}

// Of a rank that is stopped while others have not come the root tells, but not of its own process.
TEST(StopOfAProcess, ThatHasTheRootIsToldByWhoWaits) {
  setenv("NCCL_DEBUG", "INFO", 1);  // of the children
  auto children = spawn("join", free_environment_id(), 3, {{0}, {1}});
  unsetenv("NCCL_DEBUG");
  await_part(children[1], "rank 2 (of no process so far) has not joined");
  children[0].stop();
  EXPECT_THAT(await_part(children[1], "is stopped"),
              HasSubstr(": initialization stands still: rank 0 (process"));
}

// A debugger may hold it for as long as it likes, however much others have to say to it.
TEST(StopOfAProcess, ForLongerThanTheNetworkMayBeSilentIsNoDeath) {
  setenv("NICCOLITE_NET_TIMEOUT", "3", 1);  // of the children
  auto children = spawn("tell", loopback_id(), 2, one_rank_each(2));
  unsetenv("NICCOLITE_NET_TIMEOUT");
  for (Child& child : children) await(child, "telling");
  children[1].stop();
  await(children[0], "told");
  EXPECT_THAT(children[0].line(8s), IsEmpty());
  children[1].go_on();
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0) << testing::PrintToString(lines);
  }
}

// Rank 0 has something to say to rank 1, which is stopped, and so does not say anything itself,
// when the network of both falls silent: at once, or when the system takes no more and is told so.
void fall_silent(bool is_full) {
  setenv("NICCOLITE_NET_TIMEOUT", "3", 1);  // of the children
  auto children = spawn("tell", loopback_id(), 2, one_rank_each(2));
  for (Child& child : children) await(child, "telling");
  if (is_full) {
    children[1].stop();
    await(children[0], "told");
    EXPECT_THAT(children[0].line(5s), IsEmpty());
  }
  ASSERT_EQ(std::system("ip link set lo down"), 0);
  children[1].stop();
  EXPECT_THAT(await(children[0], "rank 0"), HasSubstr("cannot be reached any more"));
}

TEST(SilenceOfTheNetwork, IsNoticedByWhoHasSomethingToSay) {
  constexpr const char* kInside = "NETWORK_OF_THIS_TEST";
  if (const char* how = std::getenv(kInside); how != nullptr)
    return fall_silent(std::string(how) == "full");
  const auto in_network = [](const std::string& command) {
    return std::system(("unshare --user --map-root-user --net sh -c \"ip link set lo up" + command +
                        "\" 2> /dev/null")
                           .c_str());
  };
  if (in_network("") != 0)
    GTEST_SKIP() << "needs ip, and network namespaces, which are not allowed";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const char* how : {"empty", "full"})
    EXPECT_EQ(in_network(fmt::format(" && {}={} {} --gtest_filter=SilenceOfTheNetwork.*", kInside,
                                     how, self)),
              0)
        << how;
}

TEST(StopOfAProcess, WhichIsToldToALogThatNobodyReadsHoldsUpNobodyElse) {
  setenv("NCCL_DEBUG", "WARN", 1);  // of the children
  auto children = spawn("unread", loopback_id(), 3, {{0, 2}, {1}});
  unsetenv("NCCL_DEBUG");
  for (const size_t i : {0u, 0u, 1u}) await(children[i], "gathering");
  children[1].stop();
  EXPECT_EQ(children[0].line(8s), "left 2");
}

TEST(ExitOfAProcess, WithoutLeavingIsNoDeath) {
  auto children = spawn("exit", loopback_id(), 3, one_rank_each(3), 1);
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0) << testing::PrintToString(lines);
    if (&child == &children[1]) continue;
    EXPECT_THAT(lines, testing::Contains(AllOf(HasSubstr("has left"), HasSubstr("lost false"))));
  }
}

// The library said goodbye for it before.
TEST(ExitOfAProcess, EndsWhatIsLeftOfItsRanksAtOnce) {
  auto children = spawn("late", loopback_id(), 2, one_rank_each(2), 1);
  EXPECT_THAT(await(children[1], "late"), HasSubstr("rank 0 (process"));
  children[1].rest();
  EXPECT_EQ(children[1].wait(), 0);
}

TEST(ProcessesOfSeveralPidNamespaces, AreNotTakenForStoppedStrangers) {
  if (!Child::may_be_elsewhere()) GTEST_SKIP() << "needs PID namespaces, which are not allowed";
  const pid_t stranger = fork();
  if (stranger == 0)
    while (true) pause();
  kill(stranger, SIGSTOP);
  const UniqueId id = loopback_id();
  Child asker({.scenario = "ask", .id = id, .nranks = 2, .ranks = {0}});
  Child answerer(
      {.scenario = "ask", .id = id, .nranks = 2, .ranks = {1}, .number_elsewhere = stranger});
  EXPECT_EQ(await(asker, "rank 0"), "rank 0: here");
  asker.rest();
  EXPECT_EQ(asker.wait(), 0);
  EXPECT_EQ(answerer.wait(), 0);
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

TEST(Sessions, AreUndisturbedByForkedChildren) {
  auto children = spawn("fork", loopback_id(), 2, one_rank_each(2));
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0);
    EXPECT_THAT(lines, testing::Contains(HasSubstr("child 0 barrier fine")));
  }
}

TEST(Sessions, MeetByEnvironmentIdInAnyOrder) {
  auto children = spawn("exchange", free_environment_id(), 4, {{1}, {3}, {2, 0}});
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0) << testing::PrintToString(lines);
  }
}

TEST(Sessions, ReturnEveryDescriptorAndThread) {
  Child child({.scenario = "leaks",
               .id = UniqueId::random(Address::parse("127.0.0.1:1").value()),
               .nranks = 1,
               .ranks = {0}});
  EXPECT_THAT(child.rest(), testing::ElementsAre("descriptors 0 threads 0"));
}

TEST(Mistakes, DuplicateRankIsToldToAllWithBothProcesses) {
  auto children = spawn("join", loopback_id(), 4, {{0}, {1}, {1}});
  for (Child& child : children)
    EXPECT_THAT(
        await(child, "rank"),
        AllOf(HasSubstr("invalid usage"), HasSubstr("two callers claim rank 1"),
              testing::ContainsRegex("process [0-9]+ on host .* and process [0-9]+ on host")));
}

TEST(Mistakes, DifferentNranksAreToldToAllWithBothSides) {
  const UniqueId id = loopback_id();
  Child four({.scenario = "join", .id = id, .nranks = 4, .ranks = {0}});
  Child five({.scenario = "join", .id = id, .nranks = 5, .ranks = {1}});
  for (Child* child : {&four, &five})
    EXPECT_THAT(await(*child, "rank"), AllOf(HasSubstr("invalid usage"), HasSubstr("4"),
                                             HasSubstr("5"), HasSubstr("make nranks equal")));
}

TEST(Mistakes, AMissingRankIsNamedToAllWhenTheDeadlinePasses) {
  auto children = spawn("join", loopback_id(), 8, {{0, 1}, {2}, {3, 4, 7}}, 0, 1000);
  for (Child& child : children)
    EXPECT_THAT(
        await(child, "rank"),
        AllOf(HasSubstr("remote error: peer 5"),
              HasSubstr("of 8 heard nothing from ranks 5, 6 for "), HasSubstr("same unique id"),
              HasSubstr("127.0.0.1 port"), HasSubstr("NCCL_SOCKET_IFNAME")));
}

}  // namespace
}  // namespace niccolite::bootstrap
