// InfiniBand and RoCE over several machines: virtual NICs (docs/virtual-nics.md), whose bytes cross
// the wires of the network, and their faults.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/command.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Layout {
  const char* name;
  int machines;
  int devices;
  int nics;
  Process::Environment environment{};
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

class Verbs : public ::testing::TestWithParam<Layout> {};

TEST_P(Verbs, CarryEveryOperation) {
  const Layout& layout = GetParam();
  NETWORK_OR_SKIP(network, .machines = layout.machines, .rails = layout.nics);
  std::vector<Process> running =
      start(*network, {.role = "work",
                       .devices = layout.devices,
                       .rest = {"7"},
                       .environment = with_nics(std::to_string(layout.nics), layout.environment)});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    EXPECT_THAT(process.output(), Not(HasSubstr("via NET/Socket")));
    for (int nic = 0; nic < layout.nics; ++nic)
      EXPECT_THAT(process.output(), HasSubstr("via NET/IB/" + std::to_string(nic)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Verbs,
    ::testing::Values(
        Layout{"two_machines", 2, 1, 1}, Layout{"two_nics", 2, 2, 2},
        Layout{"three_machines", 3, 2, 1},
        Layout{"by_host_memory", 3, 2, 1, {{"NCCL_NET_GDR_LEVEL", "LOC"}}},
        Layout{"from_host_memory", 2, 2, 2, {{"NCCL_NET_GDR_READ", "0"}}},
        Layout{"queue_pairs_in_turns", 3, 1, 2, {{"NCCL_IB_QPS_PER_CONNECTION", "3"}}},
        Layout{"split",
               2,
               1,
               2,
               {{"NCCL_IB_QPS_PER_CONNECTION", "2"}, {"NCCL_IB_SPLIT_DATA_ON_QPS", "1"}}},
        Layout{"adaptive_routing",
               2,
               1,
               1,
               {{"NCCL_IB_ADAPTIVE_ROUTING", "1"},
                {"NCCL_IB_AR_THRESHOLD", "0"},
                {"NCCL_IB_USE_INLINE", "0"}}}),
    ::testing::PrintToStringParamName());

/// The sums of what the pairs of a process say at their end.
struct Account {
  double messages = 0, bytes = 0, work_requests = 0, completions = 0;
  double direct = 0;  // bytes to memory of GPUs
  int pairs = 0;
};
Account account_of(const std::string& output) {
  static const std::regex line(
      "NET/IB : to rank .*: (\\d+) messages of (\\d+) bytes in all, by (\\d+) work requests with "
      "(\\d+) completions; (\\d+) bytes to memory of GPUs");
  Account account;
  for (std::sregex_iterator at(output.begin(), output.end(), line), end; at != end; ++at) {
    account.messages += std::stod((*at)[1]);
    account.bytes += std::stod((*at)[2]);
    account.work_requests += std::stod((*at)[3]);
    account.completions += std::stod((*at)[4]);
    account.direct += std::stod((*at)[5]);
    ++account.pairs;
  }
  return account;
}

class VerbsTraffic : public ::testing::TestWithParam<int> {};

// A hierarchical all-reduce sends 2 (n - 1) / n of the data out of each of n machines; each NIC
// takes its share, and no byte goes by another way.
TEST_P(VerbsTraffic, IsWhatTheScheduleSends) {
  const int nics = GetParam();
  NETWORK_OR_SKIP(network, .machines = 2, .rails = nics);
  constexpr double kCount = 2 << 20;
  constexpr int kTimes = 3;
  std::vector<Process> running = start(
      *network, {.role = "reduce_and_tell",
                 .devices = 2,
                 .rest = {std::to_string(static_cast<int>(kCount)), std::to_string(kTimes)},
                 .environment = with_nics(std::to_string(nics), {{"NCCL_ALGO", "hierarchical"}})});
  const double expected = kCount * sizeof(float) * kTimes;  // out of each of two machines
  Account all;
  for (int machine = 0; machine < 2; ++machine) {
    Process& process = running[static_cast<size_t>(machine)];
    ASSERT_EQ(process.wait(seconds(120)), 0) << process.output();
    const Account account = account_of(process.output());
    EXPECT_EQ(account.pairs, 2) << process.output();  // of each rank with its partner
    EXPECT_GE(account.bytes, expected);
    EXPECT_LE(account.bytes, expected * 1.01 + 100'000);
    EXPECT_GE(account.direct, expected);  // all data, and nothing else
    EXPECT_LE(account.direct, account.bytes);
    all.messages += account.messages;
    all.work_requests += account.work_requests;
    all.completions += account.completions;
    double sent = 0;
    for (int rail = 0; rail < nics; ++rail)
      sent += static_cast<double>(network->traffic(machine, rail).sent);
    EXPECT_GE(sent, expected);
    EXPECT_LE(sent, expected * 1.06 + 400'000);
    for (int rail = 0; rail < nics; ++rail)
      EXPECT_GE(static_cast<double>(network->traffic(machine, rail).sent), 0.7 * sent / nics);
  }
  // A message with a chunk is two work requests of its sender, with a completion, and two of its
  // receiver: a grant, and a receive. The receives that are posted beforehand come to them, and two
  // trials: of host memory, and of memory of GPUs. Each has two work requests, with a completion.
  const double queue_pairs = 4 * nics;  // both ends
  EXPECT_LE(all.work_requests, 4 * all.messages + (64 + 2 * 2) * queue_pairs);
  // Every 16th of the other requests has one, too; receives, which are posted anew eight at a time,
  // have not.
  const double sent = all.work_requests - all.messages - (64 - 8) * queue_pairs;
  EXPECT_LE(all.completions, all.messages + sent / 16 + 2 * queue_pairs);
  // 64 KiB of data fit in one.
  EXPECT_LE(all.messages * (64 << 10), 2.5 * 2 * expected);
}

INSTANTIATE_TEST_SUITE_P(, VerbsTraffic, ::testing::Values(1, 2));

/// A file of a machine with `count` NICs, each at a switch of its own. GPU i is at
/// the switch of NIC `nics[i]`.
class Placed {
 public:
  explicit Placed(const std::vector<int>& nics, int count = 2) {
    std::string text = "<system version='1'><cpu numaid='0'>";
    for (int nic = 0; nic < count; ++nic) {
      text += fmt::format("<pci busid='0000:{}0:00.0' class='0x060400'>", nic + 1);
      for (size_t gpu = 0; gpu < nics.size(); ++gpu)
        if (nics[gpu] == nic)
          text += fmt::format(
              "<pci busid='0000:{}{}:00.0' class='0x030200'><gpu dev='{}' sm='90'/></pci>", nic + 1,
              gpu + 1, gpu);
      text += fmt::format(
          "<pci busid='0000:{0}9:00.0' class='0x020000'><nic><net name='vnic{1}' dev='{1}' "
          "speed='100000'/></nic></pci></pci>",
          nic + 1, nic);
    }
    std::ofstream(path_) << text << "</cpu></system>";
  }
  ~Placed() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = ::testing::TempDir() + "niccolite_placed_" + std::to_string(getpid());
};

TEST(VerbsAffinity, DataGoByThePortsBesideTheGpu) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  const Placed placed({1, 1});
  constexpr int kCount = 1 << 20;
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {std::to_string(kCount), "3"},
                       .environment = with_nics("2", {{"NCCL_TOPO_FILE", placed.path()}})});
  for (Process& process : running) {
    ASSERT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), ContainsRegex("Using \\[1\\]vnic1:1/RoCE .*; in reserve "
                                                "\\[0\\]vnic0:1/RoCE"));
    EXPECT_THAT(process.output(), HasSubstr("via NET/IB/1"));
    EXPECT_THAT(process.output(), Not(HasSubstr("via NET/IB/0")));
  }
  for (int machine = 0; machine < 2; ++machine) {
    const double bytes = 3.0 * kCount * sizeof(float);
    EXPECT_LT(static_cast<double>(network->traffic(machine, 0).sent), bytes / 10);
    EXPECT_GT(static_cast<double>(network->traffic(machine, 1).sent), bytes);
  }
}

// The port of the same place is the other end, also where it is not the one beside that GPU: rails
// may have no way to each other.
TEST(VerbsAffinity, PortsOfOneRailAreJoined) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  const Placed placed({1, 0, 1, 0});
  std::vector<Process> running =
      start(*network, {.role = "work",
                       .devices = 2,
                       .rest = {"7"},
                       .environment = with_nics("2", {{"NCCL_TOPO_FILE", placed.path()}})});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    EXPECT_THAT(process.output(), HasSubstr("Using [0]vnic0:1/RoCE"));
    EXPECT_THAT(process.output(), HasSubstr("Using [1]vnic1:1/RoCE"));
    EXPECT_THAT(process.output(), Not(ContainsRegex("vnic0:1 on host [^\n]* to vnic1:1")));
    EXPECT_THAT(process.output(), Not(ContainsRegex("vnic1:1 on host [^\n]* to vnic0:1")));
  }
}

// At most four ports are opened for two ranks: those beside the GPU are among them.
TEST(VerbsAffinity, OfManyPortsTheNearOneComesFirst) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  const Placed placed({5, 5}, 6);
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {"1000", "3"},
                       .environment = with_nics("6", {{"NCCL_TOPO_FILE", placed.path()}})});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(),
                ContainsRegex("Using \\[0\\]vnic5:1/RoCE [^\\[]*; in reserve \\[1\\]vnic0:1/[^\\[]*"
                              "\\[2\\]vnic1:1/[^\\[]*\\[3\\]vnic2:1/[^\\[]*\n"));
  }
}

TEST(VerbsAffinity, APortInReserveTakesThePlaceOfOneThatFails) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  const Placed placed({1, 1});
  Job job{.role = "reduce_and_tell",
          .rest = {"300000", "20"},
          .environment = {{"NCCL_IB_TIMEOUT", "10"},
                          {"NCCL_IB_RETRY_CNT", "3"},
                          {"NCCL_TOPO_FILE", placed.path()}}};
  job.of_machine = {with_nics("2,fault=down@1:40"), with_nics("2")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ROUND 19"));
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
  EXPECT_THAT(running[0].output() + running[1].output(), HasSubstr("go on over vnic0:1"));
}

// ---- GPUDirect RDMA

struct Direct {
  const char* name;
  Process::Environment environment{};  // of the first machine
  bool is_alike = true;                // so is the second one; else it has nothing set
  bool reads = true;                   // on the first machine
  bool writes = true;
  bool is_used = true;  // data go to memory of GPUs without a stop
};
std::ostream& operator<<(std::ostream& out, const Direct& direct) { return out << direct.name; }

class VerbsDirect : public ::testing::TestWithParam<Direct> {};

TEST_P(VerbsDirect, IsUsedAsTheVariablesSay) {
  const Direct& direct = GetParam();
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("1", direct.environment),
                    with_nics("1", direct.is_alike ? direct.environment : Process::Environment())};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    ASSERT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr("ROUND 19"), Not(HasSubstr("NCCL WARN"))));
    const Account account = account_of(process.output());
    if (direct.is_used)
      EXPECT_GE(account.direct, 20 * 300'000 * sizeof(float) / 2.0) << process.output();
    else
      EXPECT_EQ(account.direct, 0) << process.output();
  }
  const std::string& first = running[0].output();
  EXPECT_EQ(first.find("[send] via NET/IB/0/GDRDMA") != std::string::npos, direct.reads) << first;
  EXPECT_EQ(first.find("[receive] via NET/IB/0/GDRDMA") != std::string::npos, direct.writes)
      << first;
}

INSTANTIATE_TEST_SUITE_P(
    , VerbsDirect,
    ::testing::Values(
        Direct{"unset"}, Direct{"same_switch", {{"NCCL_NET_GDR_LEVEL", "PIX"}}},
        Direct{"any", {{"NCCL_NET_GDR_LEVEL", "SYS"}}},
        Direct{"old_number", {{"NCCL_NET_GDR_LEVEL", "1"}}},
        Direct{"old_name", {{"NCCL_IB_GDR_LEVEL", "LOC"}}, true, false, false, false},
        Direct{"flushed", {{"NCCL_NET_FORCE_FLUSH", "1"}}},
        Direct{"writes_alone", {{"NCCL_NET_GDR_READ", "0"}}, true, false},
        Direct{"never", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, true, false, false, false},
        Direct{"nvlink", {{"NCCL_NET_GDR_LEVEL", "NVL"}}, true, false, false, false},
        Direct{"old_zero", {{"NCCL_NET_GDR_LEVEL", "0"}}, true, false, false, false},
        Direct{"no_dma_buf", {{"NCCL_DMABUF_ENABLE", "0"}}, true, false, false, false},
        Direct{"one_end", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, false, false, false, false}),
    ::testing::PrintToStringParamName());

// ... count: the communicator says what memory of the GPU it keeps while it is suspended, all of
// which goes with it.
ROLE(tell_memory) {
  const LocalIds ids(arguments);
  LocalRanks ranks(ids.one, std::stoi(arguments[2]), std::stoi(arguments[3]),
                   std::stoi(arguments[4]));
  const size_t count = std::stoull(arguments[5]);
  const auto used = [] {
    size_t free = 0, total = 0;
    REQUIRE_CUDA(cudaMemGetInfo(&free, &total));
    return total - free;
  };
  bool is_right = ranks.all_reduce(count);
  REQUIRE_NCCL(ncclCommSuspend(ranks.comms[0], NCCL_SUSPEND_MEM));
  uint64_t kept = 0;
  REQUIRE_NCCL(ncclCommMemStats(ranks.comms[0], ncclStatGpuMemPersist, &kept));
  REQUIRE_NCCL(ncclCommResume(ranks.comms[0]));
  is_right &= ranks.all_reduce(count);
  const size_t before = used();
  REQUIRE_NCCL(ncclCommDestroy(ranks.comms[0]));
  const size_t freed = before - used();
  std::printf("KEPT %zu FREED %zu\n", static_cast<size_t>(kept), freed);
  ranks.free_all();
  return is_right && kept > 0 && kept == freed ? 0 : 1;
}

// Slots in memory of GPUs are memory of the communicator, which keeps them while it is suspended.
TEST(VerbsDirectMemory, Counts) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running =
      start(*network, {.role = "tell_memory", .rest = {"300000"}, .environment = with_nics("1")});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
}

// A NIC changes bytes that it reads in memory of its GPU: its end does without.
TEST(VerbsDirectTrial, LeavesTheDataToHostMemory) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("1,fault=gpu@0:0"), with_nics("1")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ROUND 19"));
  }
  EXPECT_THAT(
      running[0].output(),
      ContainsRegex("NCCL WARN NET/IB : vnic0:1 on host .* to vnic0:1 .*: when memory of the "
                    "GPUs was tried with a pattern, 1 of 8192 bytes .* came back wrong.* Data "
                    "to rank 1 .* pass through host memory. NCCL_NET_GDR_LEVEL=LOC"));
  EXPECT_EQ(account_of(running[0].output()).direct, 0);
  EXPECT_GT(account_of(running[1].output()).direct, 0);
  EXPECT_THAT(running[1].output(), Not(HasSubstr("NCCL WARN")));
}

// A NIC does not register memory of its GPU: its end does without, and so does the other one.
TEST(VerbsDirectMemory, ThatIsRefusedLeavesTheDataToHostMemory) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("1,fault=dmabuf@0:0"), with_nics("1")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr("ROUND 19"), Not(HasSubstr("NCCL WARN"))));
    EXPECT_EQ(account_of(process.output()).direct, 0) << process.output();
  }
  EXPECT_THAT(running[0].output(),
              AllOf(ContainsRegex("NET/IB : data pass through host memory: vnic0:1 on host .* "
                                  "refuses to register .* of memory of a GPU "
                                  "\\(ibv_reg_dmabuf_mr\\)"),
                    Not(HasSubstr("GDRDMA"))));
}

TEST(VerbsDirectTrial, LeavesAPortInReserveOut) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  const Placed placed({1, 1});
  Job job{.role = "reduce_and_tell",
          .rest = {"300000", "20"},
          .environment = {{"NCCL_TOPO_FILE", placed.path()}}};
  job.of_machine = {with_nics("2,fault=gpu@0:0"), with_nics("2")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ROUND 19"));
    EXPECT_GT(account_of(process.output()).direct, 0) << process.output();
  }
  EXPECT_THAT(running[0].output(),
              ContainsRegex("NCCL WARN NET/IB : vnic0:1 on host .*: when it was tried with a "
                            "pattern, in memory of the GPUs 1 of 8192 bytes .* came back wrong.* "
                            "Data to rank 1 .* go on over vnic1:1"));
}

TEST(VerbsTrial, ThatFailsSaysThatItReads) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("1,fault=refuse@0:1"), with_nics("1")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) EXPECT_GT(process.wait(seconds(60)), 10) << process.output();
  EXPECT_THAT(running[0].output() + running[1].output(),
              HasSubstr("the RDMA read of a trial failed with "));
}

TEST(VerbsPorts, AreListedWithTheirState) {
  const niccolite::testing::Outcome outcome = niccolite::testing::run_command(
      {NICCOLITE_COMMAND, "topology"}, {{"LD_LIBRARY_PATH", NICCOLITE_VVERBS},
                                        {"NICCOLITE_NICS", "virtual:2,speed=200"},
                                        {"NCCL_IB_HCA", "vnic1"}});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("vnic0:1  RoCE, active, 200 Gbit/s, GID "));
  EXPECT_THAT(outcome.output, ContainsRegex("vnic0:1 .*, virtual, not chosen by NCCL_IB_HCA\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("vnic1:1 .*\\(index [0-9]+\\), virtual, for GPU 0"));
}

// ---- faults

struct Fault {
  const char* name;
  const char* kind;
  int port = 0;  // of the NIC; 0: the NIC is the second of two
  Process::Environment environment{};
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class VerbsFault : public ::testing::TestWithParam<Fault> {
 protected:
  static Process::Environment quick(Process::Environment environment) {
    environment.insert({{"NCCL_IB_TIMEOUT", "10"}, {"NCCL_IB_RETRY_CNT", "3"}});
    return environment;
  }
};

// Every sum is right, although messages were under way on what failed. Where the machine is busy,
// the second in which an operation stands still may pass meanwhile, and be told.
TEST_P(VerbsFault, LeavesTheDataToTheOtherPort) {
  const Fault& fault = GetParam();
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  for (const char* const after : {"1", "40", "333"}) {
    Job job{.role = "reduce_and_tell",
            .rest = {"300000", "60"},
            .environment = quick(fault.environment)};
    const std::string base = fault.port > 0 ? "1,ports=2" : "2";
    const std::string place = fault.port > 0 ? "0/2" : "1";
    job.of_machine = {with_nics(base + ",fault=" + fault.kind + "@" + place + ":" + after),
                      with_nics(base)};
    std::vector<Process> running = start(*network, job);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr("ROUND 59"));
      EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN NET")));
    }
    EXPECT_THAT(running[0].output() + running[1].output(), HasSubstr("go on over vnic0:1"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , VerbsFault,
    ::testing::Values(Fault{"drop", "drop"}, Fault{"down", "down"}, Fault{"flush", "flush"},
                      Fault{"refuse", "refuse"}, Fault{"gone", "gone"},
                      Fault{"gone_of_many", "gone", 0, {{"NCCL_IB_QPS_PER_CONNECTION", "4"}}},
                      Fault{"port_down", "down", 2},
                      Fault{"down_of_many", "down", 0, {{"NCCL_IB_QPS_PER_CONNECTION", "4"}}},
                      Fault{"drop_of_split",
                            "drop",
                            0,
                            {{"NCCL_IB_QPS_PER_CONNECTION", "2"},
                             {"NCCL_IB_SPLIT_DATA_ON_QPS", "1"}}}),
    ::testing::PrintToStringParamName());

// A port that changes bytes is found before it carries any, by the end whose bytes it changes.
TEST(VerbsTrial, LeavesTheDataToThePortThatKeepsThem) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  for (const int faulty : {0, 1}) {  // which end it is
    Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
    job.of_machine = {with_nics("2"), with_nics("2")};
    job.of_machine[static_cast<size_t>(faulty)] = with_nics("2,fault=corrupt@0:0");
    std::vector<Process> running = start(*network, job);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr("ROUND 19"));
    }
    EXPECT_THAT(
        running[static_cast<size_t>(faulty)].output(),
        ContainsRegex(
            "NCCL WARN NET/IB : vnic0:1 on host .* \\(GID 10\\.77\\.1\\..*, index .*\\) to vnic0:1 "
            "\\(GID 10\\.77\\.1\\..*\\): when it was tried with a pattern, 1 of 8192 bytes .* came "
            "back wrong, the first one at 4096 .*NCCL_IB_HCA=\\^vnic0:1 .*Data to rank .* go on "
            "over vnic1:1"));
    const std::string& other = running[static_cast<size_t>(1 - faulty)].output();
    EXPECT_THAT(other, ContainsRegex("vnic0:1 on host .* has failed at rank .* when it was tried "
                                     "with a pattern, and is used no longer"));
    EXPECT_THAT(other, Not(HasSubstr("NCCL WARN NET")));
  }
}

// Where there is no other port, both ends have the error.
TEST(VerbsTrial, OfTheOnlyPortIsAnErrorAtBothEnds) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("1,fault=corrupt@0:0"), with_nics("1")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_GT(process.wait(seconds(60)), 10) << process.output();  // 10 + an error of NCCL
    EXPECT_THAT(process.output(),
                AllOf(ContainsRegex("the connection with rank [01] \\(process .* broke: vnic0:1 on "
                                    "host .* \\(GID 10\\.77\\.1\\..* to vnic0:1 \\(GID "),
                      ContainsRegex("when (it was|rank 0 .*) tried"), HasSubstr("came back wrong"),
                      HasSubstr("NCCL_IB_HCA=^vnic0:1"), Not(HasSubstr("ROUND 0"))));
  }
}

// A port that answers nothing is given up long before its NIC would do so, by the end that finds it
// first: it tells the other one.
TEST(VerbsTrial, EndsWhereNothingComesBack) {
  NETWORK_OR_SKIP(network, .machines = 2, .rails = 2);
  Job job{.role = "reduce_and_tell", .rest = {"300000", "20"}};
  job.of_machine = {with_nics("2,fault=drop@1:0"), with_nics("2")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("ROUND 19"));
  }
  EXPECT_THAT(
      running[0].output() + running[1].output(),
      AllOf(ContainsRegex("NCCL WARN NET/IB : vnic1:1 on host .*did not come back within 10 "
                          "seconds; do the two ports reach each other"),
            HasSubstr("go on over vnic0:1")));
}

// A NIC repeats lost messages, and nobody notices.
TEST(VerbsShortFault, CostsNothing) {
  NETWORK_OR_SKIP(network, .machines = 2);
  for (const char* const kind : {"flap", "slow", "lose", "late"}) {
    Job job{.role = "reduce_and_tell",
            .rest = {"300000", "20"},
            .environment = {{"NCCL_IB_TIMEOUT", "16"}}};
    job.of_machine = {with_nics(std::string("1,fault=") + kind + "@0:40"), with_nics("1")};
    std::vector<Process> running = start(*network, job);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
      EXPECT_THAT(process.output(), Not(HasSubstr("go on over")));
      EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN NET")));
    }
  }
}

class VerbsFailure : public VerbsFault {
 protected:
  /// Returns the output of both machines when the first one's only NIC has that fault.
  static std::vector<std::string> say(const Network& network, const std::string& fault) {
    Job job{.role = "reduce_and_tell",
            .rest = {"300000", "1000000"},
            // Memory of GPUs would be registered as well.
            .environment = quick({{"NICCOLITE_NET_TIMEOUT", "3"}, {"NCCL_NET_GDR_LEVEL", "LOC"}})};
    job.of_machine = {with_nics("1,fault=" + fault), with_nics("1")};
    std::vector<Process> running = start(network, job);
    std::vector<std::string> said;
    for (Process& process : running) {
      EXPECT_GT(process.wait(seconds(60)), 10) << process.output();  // 10 + an error of NCCL
      said.push_back(process.output());
    }
    said.resize(2);
    return said;
  }
};

TEST_F(VerbsFailure, OfTheOnlyPortIsNamed) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const std::vector<std::string> said = say(*network, "drop@0:40");
  EXPECT_THAT(said[0],
              AllOf(HasSubstr("the connection with rank 1 (process"), HasSubstr("vnic0:1 on host "),
                    HasSubstr("(GID 10.77.1.1, index "), HasSubstr("to vnic0:1 (GID 10.77.1.2)"),
                    HasSubstr("failed with transport retry counter exceeded (status 12"),
                    HasSubstr("is its process alive")));
}

TEST_F(VerbsFailure, OfALinkSaysThatThePortIsDown) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const std::vector<std::string> said = say(*network, "down@0:40");
  EXPECT_THAT(said[0], AllOf(HasSubstr("vnic0:1 on host "), HasSubstr("its port is down")));
}

TEST_F(VerbsFailure, OfADeviceThatIsRemovedSaysSo) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const std::vector<std::string> said = say(*network, "gone@0:40");
  EXPECT_THAT(said[0], AllOf(HasSubstr("the connection with rank 1 (process"),
                             HasSubstr("the device has failed, or was removed")));
}

TEST_F(VerbsFailure, OfMemoryIsNamed) {
  NETWORK_OR_SKIP(network, .machines = 2);
  for (const auto& [fault, what] : {std::pair{"mr@0:0", "preparing to reach rank 1: vnic0:1"},
                                    std::pair{"mr@0:3", "the connection with rank 1 (process"}}) {
    const std::vector<std::string> said = say(*network, fault);
    EXPECT_THAT(said[0], AllOf(HasSubstr(what), HasSubstr("vnic0:1 on host "),
                               HasSubstr("refuses to register"),
                               HasSubstr("Cannot allocate memory"), HasSubstr("ulimit -l")));
  }
}

TEST_F(VerbsFailure, OfThePeersProcessIsAnError) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running = start(
      *network,
      {.role = "reduce_and_tell", .rest = {"300000", "1000000"}, .environment = with_nics("1")});
  ASSERT_TRUE(running[0].wait_for_line("ROUND 5")) << running[0].output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(seconds(30)), 16) << running[0].output();  // 10 + ncclRemoteError
  EXPECT_THAT(running[0].output(), HasSubstr("rank 1"));
}

// Three machines, and each of them may be the one: the others name it.
TEST_F(VerbsFailure, OfARankThatIsKilledIsAnErrorOfAllOthers) {
  NETWORK_OR_SKIP(network, .machines = 3);
  for (int victim = 0; victim < 3; ++victim) {
    std::vector<Process> running = start(
        *network,
        {.role = "reduce_and_tell", .rest = {"300000", "1000000"}, .environment = with_nics("1")});
    for (Process& process : running)
      ASSERT_TRUE(process.wait_for_line("ROUND 5")) << process.output();
    running[static_cast<size_t>(victim)].kill(SIGKILL);
    for (int machine = 0; machine < 3; ++machine) {
      if (machine == victim) continue;
      Process& process = running[static_cast<size_t>(machine)];
      EXPECT_EQ(process.wait(seconds(30)), 16) << process.output();  // 10 + ncclRemoteError
      EXPECT_THAT(process.output(), ContainsRegex("\\(ncclAllReduce\\) NCCL WARN rank " +
                                                  std::to_string(victim) + " .*ended"));
    }
  }
}

// ---- a choice that is none

struct Mistake {
  const char* name;
  Process::Environment environment;
  const char* told;
};
std::ostream& operator<<(std::ostream& out, const Mistake& mistake) { return out << mistake.name; }

class VerbsMistake : public ::testing::TestWithParam<Mistake> {};

// A program that asks for InfiniBand and RoCE has an error.
TEST_P(VerbsMistake, IsAnErrorWhereTheyAreAskedFor) {
  const Mistake& mistake = GetParam();
  NETWORK_OR_SKIP(network, .machines = 2);
  Process::Environment asked = mistake.environment;
  asked.insert({"NCCL_NET", "ib"});
  std::vector<Process> running =
      start(*network, {.role = "begin", .environment = with_nics("1", asked)});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr("ENDED 5"), HasSubstr(mistake.told)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , VerbsMistake,
    ::testing::Values(
        Mistake{"disabled", {{"NCCL_IB_DISABLE", "1"}}, "NCCL_IB_DISABLE=1 forbids"},
        Mistake{"no_such_device",
                {{"NCCL_IB_HCA", "mlx5"}},
                "NCCL_IB_HCA='mlx5' leaves none of the 1 ports of host "},
        Mistake{"excluded", {{"NCCL_IB_HCA", "^vnic0:1"}}, "vnic0:1 (active). Name one of them"},
        Mistake{"no_such_gid",
                {{"NCCL_IB_GID_INDEX", "77"}},
                "has no GID of index 77 (NCCL_IB_GID_INDEX); its GIDs are 0 ("},
        Mistake{"no_gid_of_range",
                {{"NCCL_IB_ADDR_RANGE", "10.99.0.0/16"}},
                "has no GID of RoCE v2 in 10.99.0.0/16"},
        Mistake{"no_range", {{"NCCL_IB_ADDR_RANGE", "ten"}}, "NCCL_IB_ADDR_RANGE='ten' is no"},
        Mistake{"no_library", {{"NCCL_IBVERBS_LIB", "/no/libibverbs.so"}}, "does not open"},
        Mistake{"no_verbs",
                {{"NCCL_IBVERBS_LIB", "libm.so.6"}},
                "libm.so.6 has no function ibv_get_device_list"},
        Mistake{"no_device", {{"NICCOLITE_NICS", "none"}}, "no InfiniBand or RoCE device"}),
    ::testing::PrintToStringParamName());

TEST(VerbsByThemselves, LeaveTheDataToSocketsWhereTheyCannot) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {"1000", "3"},
                       .environment = with_nics("1", {{"NCCL_IB_HCA", "mlx5"}})});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr("NCCL_IB_HCA='mlx5' leaves none"),
                                        HasSubstr("sockets serve"), HasSubstr("via NET/Socket/0")));
  }
}

TEST(VerbsByThemselves, AreNotUsedWhereSocketsAreAskedFor) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running =
      start(*network, {.role = "reduce_and_tell",
                       .rest = {"1000", "3"},
                       .environment = with_nics("1", {{"NCCL_NET", "Socket"}})});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr("via NET/Socket/0"), Not(HasSubstr("NCCL WARN"))));
  }
}

// One machine has an IPv4 address as GID, the other one IPv6.
TEST(VerbsOfMachines, NeedGidsOfOneFamily) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"1000", "3"}};
  for (const char* const family : {"AF_INET", "AF_INET6"})
    job.of_machine.push_back(with_nics("1", {{"NCCL_IB_ADDR_FAMILY", family}}));
  std::vector<Process> running = start(*network, job);
  std::string said;
  for (Process& process : running) {
    EXPECT_GT(process.wait(), 10) << process.output();
    said += process.output();
  }
  EXPECT_THAT(said, AllOf(HasSubstr("cannot reach rank "), HasSubstr("NCCL_IB_ADDR_FAMILY")));
}

TEST(VerbsOfMachines, WithAnotherNetworkAreNamed) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "reduce_and_tell", .rest = {"1000", "3"}};
  job.of_machine = {with_nics("1"), {}};
  std::vector<Process> running = start(*network, job);
  std::string said;
  for (Process& process : running) {
    EXPECT_GT(process.wait(), 10) << process.output();
    said += process.output();
  }
  // Either rank may be the first to see it.
  EXPECT_THAT(said, ::testing::ContainsRegex(
                        "by network (IB and rank 1 by Socket|Socket and rank 0 by IB)"));
}

}  // namespace
}  // namespace niccolite::test
