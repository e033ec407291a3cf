// Ways between ranks of one machine that have, or are told to have, no peer access to each other:
// host memory, and the network where that is forbidden, too. And peer access that does not work,
// though the driver offers it: it is found out, said, and done without.

#include <gmock/gmock.h>

#include <chrono>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

std::string make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

struct Way {
  std::string title;
  Process::Environment environment;
  std::string name;  // as the log has it
};

const Way kHost{"host_memory", {{"NCCL_P2P_DISABLE", "1"}}, "via SHM"};
const Way kNetwork{
    "network", {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}}, "via NET/Socket/0"};
const Way kNetworkByWords{
    "network_LL",
    {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_PROTO", "LL"}},
    "via NET/Socket/0"};

// Processes of this machine with so many virtual GPUs each, which all see the same variables.
class Ways : public testing::TestWithParam<std::tuple<Way, std::pair<int, int>>> {
 protected:
  const Way& way() const { return std::get<0>(GetParam()); }
  int processes() const { return std::get<1>(GetParam()).first; }
  int devices() const { return std::get<1>(GetParam()).second; }

  std::vector<Process> run(const std::string& role, const Arguments& first,
                           Process::Environment environment = {}) {
    environment.insert(way().environment.begin(), way().environment.end());
    std::vector<Process> running;
    for (int process = 0; process < processes(); ++process) {
      Arguments arguments = first;
      for (const int number : {processes() * devices(), process * devices(), devices()})
        arguments.push_back(std::to_string(number));
      running.emplace_back(role, arguments, environment);
    }
    return running;
  }
};

TEST_P(Ways, AreTakenAndSaid) {
  std::vector<Process> running =
      run("reduce", {make_id()}, {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr(way().name));
    EXPECT_THAT(process.output(), HasSubstr("forbids peer access"));
    EXPECT_THAT(process.output(), Not(HasSubstr("via P2P")));
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

TEST_P(Ways, CarryEveryOperation) {
  std::vector<Process> running = run("perform", {make_id(), make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Ways, ASuspendedCommunicatorWorksAsBefore) {
  std::vector<Process> running = run("suspend", {make_id(), make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

TEST_P(Ways, SplitsTakeThoseOfTheirParents) {
  std::vector<Process> running = run("splitter", {make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

std::string title_of(const testing::TestParamInfo<Ways::ParamType>& of) {
  const std::pair<int, int> ranks = std::get<1>(of.param);
  return std::get<0>(of.param).title + "_" + std::to_string(ranks.first) + "x" +
         std::to_string(ranks.second);
}
INSTANTIATE_TEST_SUITE_P(, Ways,
                         testing::Combine(testing::Values(kHost, kNetwork, kNetworkByWords),
                                          testing::Values(std::pair(2, 1), std::pair(2, 2))),
                         title_of);

// What one rank forbids no other does.
TEST(WaysOfTwo, AreThoseThatBothAllow) {
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1}) {
    Process::Environment environment{{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}};
    environment[rank == 0 ? "NCCL_P2P_DISABLE" : "NCCL_SHM_DISABLE"] = "1";
    running.emplace_back("reduce", Arguments{id, "2", std::to_string(rank), "1"}, environment);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("via NET/Socket/0"));
  }
}

struct Level {
  std::string level;
  std::string name;
};

TEST(WaysOfTwo, AreChosenByTheDistance) {
  for (const Level& c : {Level{"LOC", "via SHM"}, Level{"NVL", "via P2P/IPC"}}) {
    const std::string id = make_id();
    std::vector<Process> running;
    for (const int rank : {0, 1})
      running.emplace_back(
          "reduce", Arguments{id, "4", std::to_string(2 * rank), "2"},
          Process::Environment{
              {"NCCL_P2P_LEVEL", c.level}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr(c.name));
      const bool has_access = c.level == "NVL";
      EXPECT_EQ(process.output().find("via P2P/direct pointer") != std::string::npos, has_access);
      EXPECT_EQ(process.output().find("via SHM") != std::string::npos, !has_access);
    }
  }
}

// ---- peer access that is broken

struct Fault {
  std::string kind;
  std::string found;
};

class BrokenPeerAccess : public testing::TestWithParam<Fault> {
 protected:
  static std::vector<Process> run(const std::string& role, const Arguments& first,
                                  Process::Environment environment) {
    environment["NICCOLITE_VIRTUAL_FAULT"] = GetParam().kind;
    std::vector<Process> running;
    for (const int process : {0, 1}) {
      Arguments arguments = first;
      for (const int number : {4, 2 * process, 2}) arguments.push_back(std::to_string(number));
      running.emplace_back(role, arguments, environment);
    }
    return running;
  }
};

// Once, by one of the two ranks, also with no variable for the log; and the results are right.
TEST_P(BrokenPeerAccess, IsFoundOutAndDoneWithout) {
  std::vector<Process> running = run("reduce", {make_id()}, {{"NCCL_DEBUG", "WARN"}});
  std::string all;
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    all += process.output();
  }
  EXPECT_THAT(all, HasSubstr("is offered by the driver and does not work: "));
  EXPECT_THAT(all, HasSubstr(GetParam().found));
  EXPECT_THAT(all, HasSubstr("host memory (SHM) connects them instead"));
  EXPECT_THAT(all, HasSubstr("iommu=pt"));
  size_t lines = 0;
  for (size_t at = 0; (at = all.find("does not work", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 6u) << "one for each of the pairs of four ranks\n" << all;
}

TEST_P(BrokenPeerAccess, LeavesEveryOperationRight) {
  std::vector<Process> running = run("perform", {make_id(), make_id()}, {});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(BrokenPeerAccess, IsDoneWithoutByTheNetworkWhereHostMemoryIsForbidden) {
  std::vector<Process> running =
      run("reduce", {make_id()},
          {{"NCCL_SHM_DISABLE", "1"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("via NET/Socket/0"));
    EXPECT_THAT(process.output(), Not(HasSubstr("via P2P")));
  }
}

INSTANTIATE_TEST_SUITE_P(, BrokenPeerAccess,
                         testing::Values(Fault{"lost", "does not arrive"},
                                         Fault{"late", "does not end"},
                                         Fault{"zeros", "is not what is there"}),
                         [](const auto& of) { return of.param.kind; });

}  // namespace
}  // namespace niccolite::test
