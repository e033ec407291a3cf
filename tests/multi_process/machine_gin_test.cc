// The networking of kernels (GIN) between processes: within a machine, and to ranks of other
// machines, which NCCL_HOSTID makes of processes of this one, by sockets and by the example of a
// plug-in; and how it fails.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "tests/multi_process/gin_programs.h"
#include "tests/multi_process/process.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string new_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

// id nranks first count team
ROLE(gin) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  const GinProgram program{.nranks = nranks,
                           .first = first,
                           .team = std::stoi(arguments[4]),
                           .each = nranks > 8 ? 2000U : 20000U};
  bool is_right = true;
  for (int i = 0; i < 3 && is_right; ++i) is_right = exchange_by_kernels(ranks, program);
  is_right = is_right && leave_nothing_behind(ranks);
  ranks.destroy();
  return is_right ? 0 : 1;
}

// id rank what
ROLE(gin_fault) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  return fail_by_kernels(ranks, rank, arguments[2]);
}

struct Layout {
  const char* name;
  std::vector<int> machines;  // by process
  int devices;                // of a process
  int team;
  Process::Environment environment{};
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

class MachineGin : public testing::TestWithParam<Layout> {};

TEST_P(MachineGin, IsRightOnEveryRank) {
  const auto& [name, machines, devices, team, environment] = GetParam();
  const std::string id = new_id();
  const int nranks = static_cast<int>(machines.size()) * devices;
  std::vector<Process> running;
  for (const int machine : machines) {
    Process::Environment of_machine = environment;
    of_machine["NCCL_HOSTID"] = "machine" + std::to_string(machine);
    const int first = static_cast<int>(running.size()) * devices;
    running.emplace_back("gin",
                         Arguments{id, std::to_string(nranks), std::to_string(first),
                                   std::to_string(devices), std::to_string(team)},
                         of_machine);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , MachineGin,
    testing::Values(
        Layout{"two_machines", {0, 1}, 1, 1}, Layout{"three_machines", {0, 1, 2}, 2, 2},
        Layout{"two_processes_of_a_machine", {0, 0, 1, 1}, 1, 2},
        Layout{"teams_in_a_machine", {0, 0, 1, 1}, 1, 1, {{"NCCL_LSA_TEAM_SIZE", "1"}}},
        Layout{"uneven_machines", {0, 0, 1}, 1, 1}, Layout{"one_machine", {0, 0}, 2, 4},
        Layout{"teams_of_one", {0, 0, 0}, 1, 1, {{"NCCL_LSA_TEAM_SIZE", "1"}}},
        Layout{"teams_of_two", {0, 0}, 2, 2, {{"NCCL_LSA_TEAM_SIZE", "2"}}},
        Layout{"sixteen_ranks",
               {0, 0, 0, 0},
               4,
               2,
               {{"NCCL_LSA_TEAM_SIZE", "2"}, {"NICCOLITE_DEVICES", "virtual:16"}}},
        Layout{
            "plugin", {0, 1}, 2, 2, {{"NCCL_NET_PLUGIN", NET_PLUGINS "/libnccl-net-NOTHING.so"}}}),
    testing::PrintToStringParamName());

std::vector<Process> start(const std::string& what) {
  const std::string id = new_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back("gin_fault", Arguments{id, std::to_string(rank), what},
                         Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(rank)}});
  return running;
}

TEST(MachineGinErrors, OfAPeerThatDiesAreNamedAndKernelsEnd) {
  std::vector<Process> running = start("killed");
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("WAITING")) << process.output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("FAILURE 6"), HasSubstr("rank 1"), HasSubstr("ENDED")));
}

// id rank
ROLE(gin_stop) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 3, rank, 1);
  const bool is_right = go_on_beside_a_peer_that_is_stopped(ranks, rank);
  ranks.destroy();
  return is_right ? 0 : 1;
}

TEST(MachineGinPeers, ThatAreStoppedHoldUpNoOthers) {
  const std::string id = new_id();
  std::vector<Process> running;
  for (const int rank : {0, 1, 2})
    running.emplace_back("gin_stop", Arguments{id, std::to_string(rank)},
                         Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(rank)}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("WRONG")));
  }
}

// id rank
ROLE(gin_order) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  return keep_the_order(ranks, rank) ? 0 : 1;
}

TEST(MachineGinPeers, HearOfGetsWhenTheyHaveCome) {
  const std::string id = new_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back("gin_order", Arguments{id, std::to_string(rank)},
                         Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(rank)}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("WRONG")));
  }
}

TEST(MachineGinErrors, OfAPeerThatLeavesAreNamedAndKernelsEnd) {
  std::vector<Process> running = start("left");
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("FAILURE 6"), HasSubstr("rank 1"), HasSubstr("ENDED")));
}

TEST(MachineGinErrors, DoNotKeepAnAbortFromEndingKernels) {
  std::vector<Process> running = start("aborted");
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ENDED with 2"));
  }
}

TEST(MachineGinErrors, DoNotKeepAnAbortFromEndingKernelsWhoseQueueIsFull) {
  std::vector<Process> running = start("stopped");
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(), HasSubstr("ENDED, waited"));
}

TEST(MachineGinErrors, OfTheImpossibleAreNamedAndKernelsEnd) {
  const char* const texts[] = {"rank 0: a kernel's put to rank 1, context 0: 16 bytes at offset",
                               "rank 0: a kernel's signal to rank 1, context 0: signal 1000 of",
                               "rank 0: a kernel's put to rank 1, context 0: counter 7 of 2",
                               "rank 0: a kernel's get to rank 1, context 0: 8 bytes at offset"};
  for (int bad = 0; bad < 4; ++bad) {
    std::vector<Process> running = start("bad" + std::to_string(bad));
    EXPECT_EQ(running[0].wait(), 0) << running[0].output();
    EXPECT_THAT(running[0].output(),
                AllOf(HasSubstr("FAILURE 4"), HasSubstr(texts[bad]), HasSubstr("ENDED")));
    running[1].kill(SIGKILL);  // it waits for a failure of its own
  }
}

TEST(MachineGinErrors, OfAWindowThatIsGoneAreOnBothRanks) {
  std::vector<Process> running = start("deregistered");
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr("FAILURE 6"), HasSubstr("ENDED"),
                      HasSubstr("a kernel of rank 0 uses window number 0 of rank 1, which is not "
                                "registered here")));
  }
}

}  // namespace
}  // namespace niccolite::test
