// The networking of kernels (GIN) between machines that reach each other by wires alone: by sockets
// and by virtual NICs.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/multi_process/gin_programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ROLE(gin_work) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  const int count = std::stoi(arguments[4]);
  LocalRanks ranks(ids.one, nranks, first, count);
  const bool is_right =
      exchange_by_kernels(ranks, {.nranks = nranks, .first = first, .team = count});
  ranks.destroy();
  return is_right ? 0 : 1;
}

ROLE(gin_killed) {
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, 2, rank, 1);
  return fail_by_kernels(ranks, rank, "killed");
}

struct Layout {
  const char* name;
  int machines;
  int devices;
  bool by_verbs = false;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

Process::Environment environment_of(const Layout& layout) {
  Process::Environment environment{{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NET"}};
#ifdef NICCOLITE_VVERBS
  if (layout.by_verbs)
    environment.insert({{"LD_LIBRARY_PATH", NICCOLITE_VVERBS},
                        {"NICCOLITE_NICS", "virtual:1"},
                        {"NCCL_NET", "IB"}});
#endif
  return environment;
}

class NamespaceGin : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(, NamespaceGin,
                         testing::Values(Layout{"two_machines", 2, 1},
                                         Layout{"three_machines", 3, 2}
#ifdef NICCOLITE_VVERBS
                                         ,
                                         Layout{"two_machines_by_verbs", 2, 1, true},
                                         Layout{"three_machines_by_verbs", 3, 2, true}
#endif
                                         ),
                         testing::PrintToStringParamName());

TEST_P(NamespaceGin, IsRightOnEveryRank) {
  const Layout& layout = GetParam();
  NETWORK_OR_SKIP(network, .machines = layout.machines);
  std::vector<Process> running =
      start(*network,
            {.role = "gin_work", .devices = layout.devices, .environment = environment_of(layout)});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    EXPECT_THAT(process.output(), HasSubstr(layout.by_verbs ? "via NET/IB/0" : "via NET/Socket/0"));
  }
}

TEST(NamespaceGinFaults, OfAPeerThatDiesAreNamedAndKernelsEnd) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running = start(*network, {.role = "gin_killed"});
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("WAITING")) << process.output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("FAILURE 6"), HasSubstr("rank 1"), HasSubstr("ENDED")));
}

}  // namespace
}  // namespace niccolite::test
