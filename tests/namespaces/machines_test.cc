// Everything over several machines: network namespaces, joined by virtual wires whose bytes are
// counted.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/multi_process/programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// ... programs
ROLE(work) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  LocalRanks one(ids.one, nranks, first, std::stoi(arguments[4]));
  LocalRanks two(ids.two, nranks, first, std::stoi(arguments[4]));
  const bool is_right = perform_programs(
      one, two, {.nranks = nranks, .first_rank = first, .random = std::stoull(arguments[5])});
  one.destroy();
  two.destroy();
  return is_right ? 0 : 1;
}

struct Layout {
  int machines;
  int devices;
  bool is_ipv6;
  const char* protocol = "";  // the library chooses
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.machines << "x" << layout.devices << (layout.is_ipv6 ? "_v6" : "_v4")
             << (*layout.protocol != 0 ? "_" : "") << layout.protocol;
}

class Layouts : public testing::TestWithParam<Layout> {};

TEST_P(Layouts, EveryOperationIsRightOnEveryRank) {
  NETWORK_OR_SKIP(network, .machines = GetParam().machines, .is_ipv6 = GetParam().is_ipv6);
  std::vector<Process> running =
      start(*network, {.role = "work",
                       .devices = GetParam().devices,
                       .rest = {"5"},
                       .environment = {{"NCCL_PROTO", GetParam().protocol}}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int machines : {1, 2, 3, 5})
    for (const int devices : {1, 2, 4})
      all.push_back({machines, devices, (machines + devices) % 2 == 0});
  all.push_back({2, 2, false});
  all.push_back({3, 1, false});
  all.push_back({8, 1, true});
  for (const int devices : {1, 2}) all.push_back({3, devices, false, "LL"});
  return all;
}
INSTANTIATE_TEST_SUITE_P(, Layouts, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());

// As containers of one machine are, each with a network of its own: they can hand no memory to each
// other, and are machines of their own without being told so.
TEST(Containers, OfOneMachineMeetOverTheNetwork) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running =
      start(*network,
            {.role = "work", .devices = 2, .rest = {"5"}, .environment = {{"NCCL_HOSTID", ""}}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

// TCP makes up for what wires lose and mix up: it arrives late, and in pieces.
TEST(BadWires, LeaveEveryOperationRight) {
  NETWORK_OR_SKIP(network, .machines = 3);
  for (int machine = 0; machine < 3; ++machine) {
    std::string reason;
    if (!network->shape(machine, 0, "netem delay 500us 200us 25% loss 0.5% reorder 20%", reason))
      GTEST_SKIP() << reason;
  }
  std::vector<Process> running = start(*network, {.role = "work", .devices = 2, .rest = {"3"}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
}

// ... count times stride
ROLE(reduce_often) {
  const LocalIds ids(arguments);
  LocalRanks ranks(ids.one, std::stoi(arguments[2]), std::stoi(arguments[3]),
                   std::stoi(arguments[4]), std::stoi(arguments[7]));
  bool is_right = true;
  for (int i = 0; i < std::stoi(arguments[6]); ++i)
    is_right &= ranks.all_reduce(std::stoull(arguments[5]));
  ranks.destroy();
  return is_right ? 0 : 1;
}

class Wires : public Layouts {
 protected:
  void expect_one_crossing(bool deals_ranks);
};
INSTANTIATE_TEST_SUITE_P(, Wires,
                         testing::Values(Layout{2, 1, false}, Layout{2, 4, true},
                                         Layout{3, 2, false}, Layout{4, 1, true}),
                         testing::PrintToStringParamName());

// A ring over n ranks sends 2 (n - 1) / n of the data over each of its links, of which one leads
// out of each machine and one into it.
void Wires::expect_one_crossing(bool deals_ranks) {
  NETWORK_OR_SKIP(network, .machines = GetParam().machines, .is_ipv6 = GetParam().is_ipv6);
  constexpr size_t kCount = 2 << 20;
  constexpr int kTimes = 3;
  std::vector<Process> running =
      start(*network, {.role = "reduce_often",
                       .devices = GetParam().devices,
                       .deals_ranks = deals_ranks,
                       .rest = {std::to_string(kCount), std::to_string(kTimes),
                                std::to_string(deals_ranks ? GetParam().machines : 1)},
                       .environment = {{"NCCL_ALGO", "Ring"}}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
  const double nranks = GetParam().machines * GetParam().devices;
  const double expected = 2 * (nranks - 1) / nranks * kCount * sizeof(float) * kTimes;
  // Headers of ours, TCP's and Ethernet's, acknowledgements, the bootstrap.
  constexpr double kOverhead = 0.06;
  constexpr double kConstant = 256 << 10;
  for (int machine = 0; machine < GetParam().machines; ++machine) {
    const Network::Traffic traffic = network->traffic(machine);
    for (const uint64_t bytes : {traffic.sent, traffic.received}) {
      EXPECT_GE(static_cast<double>(bytes), expected);
      EXPECT_LE(static_cast<double>(bytes), expected * (1 + kOverhead) + kConstant);
    }
  }
}

TEST_P(Wires, AreCrossedOnceInEachDirectionByARing) { expect_one_crossing(false); }
// In the order of ranks each hop would cross.
TEST_P(Wires, AreCrossedAsOftenWhereRanksAreDealtInTurns) { expect_one_crossing(true); }

// ... : says how its init ended.
ROLE(begin) {
  const LocalIds ids(arguments);
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      ncclCommInitRank(&comm, std::stoi(arguments[2]), ids.one, std::stoi(arguments[3]));
  std::printf("ENDED %d %s\n", result, ncclGetLastError(nullptr));
  if (result == ncclSuccess) REQUIRE_NCCL(ncclCommDestroy(comm));
  return 0;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MachineGraph, IsTheSameOnAllMachines) {
  NETWORK_OR_SKIP(network, .machines = 3);
  const std::string path = testing::TempDir() + "/niccolite_topology_" + std::to_string(getpid());
  Job job{.role = "reduce_often", .devices = 2, .rest = {"1000", "1", "1"}};
  for (int machine = 0; machine < 3; ++machine)
    job.of_machine.push_back({{"NCCL_TOPO_DUMP_FILE", path + std::to_string(machine)},
                              {"NCCL_TOPO_DUMP_FILE_RANK", std::to_string(2 * machine)}});
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  const std::string dumped = read_file(path + "0");
  for (const char* part : {"host_hash=\"machine2\"", "name=\"eth0\"", "rank=\"5\""})
    EXPECT_THAT(dumped, HasSubstr(part));
  for (int machine = 0; machine < 3; ++machine) {
    EXPECT_EQ(read_file(path + std::to_string(machine)), dumped);
    std::remove((path + std::to_string(machine)).c_str());
  }
}

TEST(MachineGraph, ThatDoesNotFitIsAnErrorOnEveryRank) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const std::string path = testing::TempDir() + "/niccolite_topology_" + std::to_string(getpid());
  std::ofstream(path)
      << "<system version='1'><cpu numaid='0'><pci busid='0000:01:00.0'><gpu dev='9' sm='90'/>"
         "</pci></cpu></system>";
  Job job{.role = "begin", .of_machine = {{}, {{"NCCL_TOPO_FILE", path}}}};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ENDED 5"));
    EXPECT_THAT(process.output(),
                HasSubstr("rank 1: NCCL_TOPO_FILE=" + path + " does not fit this machine"));
    EXPECT_THAT(process.output(), HasSubstr("GPUs at 0000:01:00.0 only"));
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace niccolite::test
