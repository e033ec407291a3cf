// Several network interfaces as rails: all that are chosen carry data, and those that fail are
// replaced by others.

#include <gmock/gmock.h>

#include <cstdio>

#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// ... count times: all-reduces, each of which says that it is done.
ROLE(reduce_and_tell) {
  const LocalIds ids(arguments);
  LocalRanks ranks(ids.one, std::stoi(arguments[2]), std::stoi(arguments[3]),
                   std::stoi(arguments[4]));
  bool is_right = true;
  for (int i = 0; i < std::stoi(arguments[6]); ++i) {
    is_right &= ranks.all_reduce(std::stoull(arguments[5]));
    std::printf("ROUND %d\n", i);
    std::fflush(stdout);
  }
  ranks.destroy();
  return is_right ? 0 : 1;
}

struct Layout {
  int machines;
  int devices;
  int rails;
  bool is_ipv6;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.machines << "x" << layout.devices << "_" << layout.rails
             << (layout.is_ipv6 ? "_v6" : "_v4");
}

class Rails : public testing::TestWithParam<Layout> {};

// A hierarchical all-reduce sends 2 (n - 1) / n of the data out of each of n machines, whatever the
// rails; each of them takes about its share.
TEST_P(Rails, ShareWhatTheScheduleSends) {
  const Layout& layout = GetParam();
  NETWORK_OR_SKIP(network, .machines = layout.machines, .rails = layout.rails,
                  .is_ipv6 = layout.is_ipv6);
  constexpr size_t kCount = 2 << 20;
  constexpr int kTimes = 3;
  std::vector<Process> running = start(
      *network,
      {.role = "reduce_and_tell",
       .devices = layout.devices,
       .rest = {std::to_string(kCount), std::to_string(kTimes)},
       .environment = {
           {"NCCL_ALGO", "hierarchical"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NET"}}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
    for (int rail = 0; rail < layout.rails; ++rail)
      EXPECT_THAT(process.output(), HasSubstr("via NET/Socket/" + std::to_string(rail)));
  }
  const double machines = layout.machines;
  const double expected = 2 * (machines - 1) / machines * kCount * sizeof(float) * kTimes;
  // Headers of ours, TCP's and Ethernet's, acknowledgements, the bootstrap.
  constexpr double kOverhead = 0.06;
  constexpr double kConstant = 256 << 10;
  for (int machine = 0; machine < layout.machines; ++machine) {
    double sent = 0;
    std::vector<double> of_rails;
    for (int rail = 0; rail < layout.rails; ++rail) {
      of_rails.push_back(static_cast<double>(network->traffic(machine, rail).sent));
      sent += of_rails.back();
    }
    EXPECT_GE(sent, expected);
    EXPECT_LE(sent, expected * (1 + kOverhead) + kConstant);
    for (const double of_rail : of_rails) EXPECT_GE(of_rail, 0.7 * sent / layout.rails);
  }
}

INSTANTIATE_TEST_SUITE_P(, Rails,
                         testing::Values(Layout{2, 1, 1, true}, Layout{2, 1, 2, false},
                                         Layout{2, 2, 2, true}, Layout{3, 2, 2, false},
                                         Layout{2, 4, 3, true}),
                         testing::PrintToStringParamName());

TEST(RailsOfRanks, AreDifferentOnesOfAMachine) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .devices = 2,
                       .rest = {"10", "1"},
                       .environment = {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NET"}}});
  for (size_t machine = 0; machine < 2; ++machine) {
    EXPECT_EQ(running[machine].wait(), 0) << running[machine].output();
    for (const int local : {0, 1})
      EXPECT_THAT(running[machine].output(),
                  HasSubstr("rank " + std::to_string(2 * static_cast<int>(machine) + local) +
                            " begins with " + std::to_string(local)));
  }
}

TEST(RailsOfRanks, AreThoseThatTheVariableNames) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 3);
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {"1000000", "3"},
                       .environment = {{"NCCL_SOCKET_IFNAME", "=eth2,eth1"},
                                       {"NCCL_DEBUG", "INFO"},
                                       {"NCCL_DEBUG_SUBSYS", "NET"}}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("NET/Socket : Using [0]eth1:10.77.2."));
    EXPECT_THAT(process.output(), HasSubstr("[1]eth2:10.77.3."));
  }
  EXPECT_LT(network->traffic(0, 0).sent, 100'000u);
}

class FailingRail : public testing::TestWithParam<int> {};

// The data go on over the other, though TCP would wait half a minute.
TEST_P(FailingRail, IsReplacedByTheOther) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  constexpr int kRounds = 40;
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {"500000", std::to_string(kRounds)},
                       .environment = {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NET"}}});
  ASSERT_TRUE(running[0].wait_for_line("ROUND 5")) << running[0].output();
  std::string reason;
  const std::string name = "eth" + std::to_string(GetParam());
  ASSERT_TRUE(network->configure(1, "link set " + name + " down\n", reason)) << reason;
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ROUND " + std::to_string(kRounds - 1)));
    // The bootstrap, which is on the first, cannot ask the peer what holds it up meanwhile.
    if (GetParam() > 0) {
      EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    }
  }
  EXPECT_THAT(running[0].output() + running[1].output(), HasSubstr("replaces one that is silent"));
}

INSTANTIATE_TEST_SUITE_P(, FailingRail, testing::Values(0, 1));

}  // namespace
}  // namespace niccolite::test
