// The network reduces: machines that are network namespaces, a switch that is a process on one more
// of them (examples/collnet_plugin), wires whose bytes are counted, and faults.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>

#include "tests/multi_process/programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kPort[] = "7777";

// address: the switch, until it is killed.
ROLE(network_switch) {
  execl(COLLNET_SWITCH, COLLNET_SWITCH, arguments[0].c_str(), kPort, nullptr);
  return 127;
}

// ... count times: says how it ended.
ROLE(reduce_through_network) {
  const LocalIds ids(arguments);
  LocalRanks ranks(ids.one, std::stoi(arguments[2]), std::stoi(arguments[3]),
                   std::stoi(arguments[4]));
  for (int i = 0; i < std::stoi(arguments[6]); ++i) {
    // The failure may come before the next operation begins.
    ncclResult_t result = ranks.start(std::stoull(arguments[5]));
    std::printf("BEGUN %d\n", i);
    std::fflush(stdout);
    if (result == ncclSuccess) result = ranks.finish();
    if (result == ncclSuccess) continue;
    std::printf("ENDED %d %s\n", result, ncclGetLastError(ranks.comms[0]));
    ranks.abort();
    return 3;
  }
  ranks.destroy();
  return 0;
}

// ...: all-reduces of a type that the switch does not know are refused, alone and in a group.
// All-reduces of a type that it knows go on.
ROLE(reduce_unknown_type) {
  const LocalIds ids(arguments);
  LocalRanks ranks(ids.one, std::stoi(arguments[2]), std::stoi(arguments[3]),
                   std::stoi(arguments[4]));
  std::vector<void*> buffers(ranks.comms.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[3]) + static_cast<int>(i)));
    REQUIRE_CUDA(cudaMalloc(&buffers[i], 64));
  }
  const auto all_reduce = [&](int calls, ncclDataType_t type, ncclRedOp_t op) {
    REQUIRE_NCCL(ncclGroupStart());
    for (int call = 0; call < calls; ++call)
      for (size_t i = 0; i < buffers.size(); ++i)
        REQUIRE_NCCL(
            ncclAllReduce(buffers[i], buffers[i], 8, type, op, ranks.comms[i], ranks.streams[i]));
    return ncclGroupEnd();
  };
  for (const int calls : {1, 2}) {
    if (all_reduce(calls, ncclFloat16, ncclProd) != ncclInvalidUsage) return 1;
    std::printf("REFUSED %s\n", ncclGetLastError(nullptr));
    REQUIRE_NCCL(all_reduce(calls, ncclFloat32, ncclSum));
  }
  REQUIRE_NCCL(ranks.finish());
  for (void* const buffer : buffers) REQUIRE_CUDA(cudaFree(buffer));
  if (!ranks.all_reduce(1000)) return 1;
  ranks.destroy();
  return 0;
}

/// Buffers of one rank that are registered.
struct RegisteredBuffers {
  RegisteredBuffers(ncclComm_t of, size_t elements) : comm(of), count(elements) {
    for (int i = 0; i < 2; ++i) {
      REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), count * sizeof(float)));
      REQUIRE_NCCL(ncclCommRegister(comm, memory[i], count * sizeof(float), &handles[i]));
    }
  }
  void fill(int rank) const {
    std::vector<float> data(count);
    for (size_t k = 0; k < count; ++k) data[k] = value(rank, k);
    REQUIRE_CUDA(cudaMemcpy(memory[0], data.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  }
  /// Is element k of the first `elements` what want(k) says?
  template <typename Want>
  void expect(const char* what, int i, size_t elements, Want&& want) const {
    std::vector<float> data(elements);
    REQUIRE_CUDA(
        cudaMemcpy(data.data(), memory[i], elements * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < elements; ++k)
      if (data[k] != want(k)) {
        std::printf("WRONG %s at %zu: %g, not %g\n", what, k, static_cast<double>(data[k]),
                    static_cast<double>(want(k)));
        std::exit(1);
      }
  }
  void end() {
    for (int i = 0; i < 2; ++i) {
      REQUIRE_NCCL(ncclCommDeregister(comm, handles[i]));
      REQUIRE_NCCL(ncclMemFree(memory[i]));
    }
  }
  static float value(int rank, size_t k) {
    return static_cast<float>((k * 5 + static_cast<size_t>(rank) * 3) % 16);
  }

  ncclComm_t comm;
  size_t count;
  float* memory[2] = {};
  void* handles[2] = {};
};

// ... elements: all-reduces, also in place, reduce-scatters and all-gathers of registered memory.
ROLE(reduce_registered) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, nranks, first, std::stoi(arguments[4]));
  const size_t count = std::stoull(arguments[5]);
  const size_t share = count / static_cast<size_t>(nranks);
  std::vector<RegisteredBuffers> buffers;
  for (int i = 0; i < ranks.count(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + i));
    buffers.emplace_back(ranks.comms[static_cast<size_t>(i)], count);
  }
  const auto sum = [&](size_t k) {
    float total = 0;
    for (int rank = 0; rank < nranks; ++rank) total += RegisteredBuffers::value(rank, k);
    return total;
  };
  const auto run = [&](auto&& call) {
    for (int i = 0; i < ranks.count(); ++i) buffers[static_cast<size_t>(i)].fill(first + i);
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < buffers.size(); ++i)
      REQUIRE_NCCL(
          call(buffers[i].memory[0], buffers[i].memory[1], ranks.comms[i], ranks.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
    REQUIRE_NCCL(ranks.finish());
  };
  for (int time = 0; time < 3; ++time) {
    run([&](float* in, float* out, ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream);
    });
    for (const RegisteredBuffers& of : buffers) of.expect("all-reduce", 1, count, sum);
    run([&](float* in, float* /*out*/, ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(in, in, count, ncclFloat, ncclSum, comm, stream);
    });
    for (const RegisteredBuffers& of : buffers) of.expect("all-reduce in place", 0, count, sum);
    run([&](float* in, float* out, ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(in, out, share, ncclFloat, ncclSum, comm, stream);
    });
    for (size_t i = 0; i < buffers.size(); ++i)
      buffers[i].expect("reduce-scatter", 1, share, [&](size_t k) {
        return sum(k + share * (static_cast<size_t>(first) + i));
      });
    run([&](float* in, float* out, ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(in, out, share, ncclFloat, comm, stream);
    });
    for (const RegisteredBuffers& of : buffers)
      of.expect("all-gather", 1, share * static_cast<size_t>(nranks), [&](size_t k) {
        return RegisteredBuffers::value(static_cast<int>(k / share), k % share);
      });
  }
  for (RegisteredBuffers& of : buffers) of.end();
  ranks.destroy();
  return 0;
}

/// A network of `machines`, and one more with the switch.
class CollnetNetwork {
 public:
  explicit CollnetNetwork(int machines, std::string& reason)
      : machines_(machines), network_(Network::create({.machines = machines + 1}, reason)) {
    if (network_ == nullptr) return;
    switch_.emplace("network_switch", Arguments{network_->address(machines)},
                    Process::Environment{}, network_->machine(machines));
    EXPECT_TRUE(switch_->wait_for_line("ready")) << switch_->output();
  }
  bool exists() const { return network_ != nullptr; }
  const Network& network() const { return *network_; }
  void kill_switch() { switch_->kill(SIGKILL); }

  std::vector<Process> begin(const std::string& role, int devices, Arguments rest,
                             Process::Environment environment = {},
                             std::vector<Process::Environment> of_machine = {}) const {
    environment.emplace("NCCL_NET_PLUGIN", COLLNET_PLUGIN);
    environment.emplace("NCCL_COLLNET_ENABLE", "1");
    environment.emplace("COLLNET_SWITCH", network_->address(machines_) + ":" + kPort);
    return start(*network_, {.role = role,
                             .devices = devices,
                             .machines = machines_,
                             .rest = std::move(rest),
                             .environment = std::move(environment),
                             .of_machine = std::move(of_machine)});
  }

 private:
  const int machines_;
  const std::unique_ptr<Network> network_;
  std::optional<Process> switch_;
};

#define COLLNET_OR_SKIP(name, machines)         \
  std::string name##_reason;                    \
  CollnetNetwork name(machines, name##_reason); \
  if (!name.exists()) GTEST_SKIP() << name##_reason

struct Layout {
  int machines;
  int devices;
  const char* algorithm;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.machines << "x" << layout.devices << "_" << layout.algorithm;
}
class Collnet : public testing::TestWithParam<Layout> {};

// Types and operations that the switch does not know go by another algorithm of the list.
TEST_P(Collnet, EveryOperationIsRightOnEveryRank) {
  COLLNET_OR_SKIP(network, GetParam().machines);
  std::vector<Process> running =
      network.begin("work", GetParam().devices, {"3"},
                    {{"NCCL_ALGO", fmt::format("{},ring", GetParam().algorithm)}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

// As in NCCL, a list that suits no operation has no silent way out.
TEST(CollnetAlone, RefusesTypesThatTheSwitchDoesNotKnow) {
  COLLNET_OR_SKIP(network, 2);
  for (const char* const algorithms :
       {"CollnetDirect", "CollnetDirect,NVLS", "NVLSTree,CollnetChain"}) {
    std::vector<Process> running =
        network.begin("reduce_unknown_type", 2, {}, {{"NCCL_ALGO", algorithms}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(40)), 0) << algorithms << ": " << process.output();
      EXPECT_THAT(process.output(),
                  AllOf(HasSubstr("CollNet does not reduce half by prod, as its plug-in says"),
                        HasSubstr("as in NCCL_ALGO=CollnetDirect,ring")));
    }
  }
}

// A ring would send 2 (n - 1) / n of the data.
TEST_P(Collnet, EachMachineSendsTheDataOnceAndReceivesItOnce) {
  COLLNET_OR_SKIP(network, GetParam().machines);
  constexpr size_t kCount = 1 << 20;
  constexpr int kTimes = 3;
  std::vector<Process> running = network.begin(
      "reduce_often", GetParam().devices, {std::to_string(kCount), std::to_string(kTimes), "1"},
      {{"NCCL_ALGO", GetParam().algorithm}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
  constexpr double kData = kCount * sizeof(float) * kTimes;
  // Headers of ours, TCP's and Ethernet's, acknowledgements, the bootstrap.
  constexpr double kOverhead = 0.06;
  constexpr double kConstant = 256 << 10;
  for (int machine = 0; machine < GetParam().machines; ++machine) {
    const Network::Traffic traffic = network.network().traffic(machine);
    for (const uint64_t bytes : {traffic.sent, traffic.received}) {
      EXPECT_GE(static_cast<double>(bytes), kData);
      EXPECT_LE(static_cast<double>(bytes), kData * (1 + kOverhead) + kConstant);
    }
  }
}

// The plug-in refuses memory that it does not know.
TEST_P(Collnet, BuffersOfUsersThatAreRegisteredAreRightOnAnyNumberOfChannels) {
  COLLNET_OR_SKIP(network, GetParam().machines);
  for (const char* channels : {"1", "4"}) {
    std::vector<Process> running =
        network.begin("reduce_registered", GetParam().devices, {"1000000"},
                      {{"NCCL_ALGO", GetParam().algorithm},
                       {"NCCL_MIN_CTAS", channels},
                       {"NCCL_MAX_CTAS", channels},
                       {"NCCL_DEBUG", "INFO"},
                       {"NCCL_DEBUG_SUBSYS", "REG,TUNING"},
                       {"NICCOLITE_NET_DIRECT_BYTES", "4096"}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr("the network knows the buffer"));
    }
    EXPECT_THAT(running[0].output(),
                HasSubstr(fmt::format("channel{{Lo..Hi}}={{0..{}}}", std::stoi(channels) - 1)));
  }
}

// Memory of virtual GPUs counts as memory of GPUs where the plug-in takes some. The plug-in
// compares the descriptor's memory with the buffer.
TEST(CollnetMemory, IsRegisteredAsThePluginTakesIt) {
  struct Case {
    const char* memory;
    const char* enabled;
    const char* said;
    const char* unsaid;
  };
  for (const Case& c :
       {Case{"dmabuf", "1", "Switch: regMrDmaBuf", "as host memory"},
        Case{"device", "1", "Switch: regMr of device memory", "regMrDmaBuf"},
        Case{"refused", "1", "as host memory: CollNet plug-in Switch", "Switch: regMr"},
        Case{"dmabuf", "0", "as host memory: CollNet plug-in Switch", "regMrDmaBuf"},
        Case{"", "1", "the network knows the buffer", "as host memory"}}) {
    SCOPED_TRACE(testing::Message() << c.memory << ", NCCL_DMABUF_ENABLE=" << c.enabled);
    COLLNET_OR_SKIP(network, 2);
    std::vector<Process> running = network.begin("reduce_registered", 1, {"100000"},
                                                 {{"NCCL_ALGO", "CollnetDirect"},
                                                  {"NCCL_DEBUG", "INFO"},
                                                  {"NCCL_DEBUG_SUBSYS", "REG,INIT"},
                                                  {"COLLNET_MEMORY", c.memory},
                                                  {"NCCL_DMABUF_ENABLE", c.enabled},
                                                  {"NICCOLITE_NET_DIRECT_BYTES", "4096"}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
      EXPECT_THAT(process.output(), AllOf(HasSubstr(c.said), Not(HasSubstr(c.unsaid)),
                                          HasSubstr("the network knows the buffer")));
    }
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int machines : {2, 3, 4})
    for (const int devices : {1, 2}) all.push_back({machines, devices, "CollnetDirect"});
  all.push_back({3, 2, "CollnetChain"});
  return all;
}
INSTANTIATE_TEST_SUITE_P(, Collnet, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());

// ---- what cannot be set up: one line, and the communicator runs without

struct Refusal {
  const char* name;
  Process::Environment of_one;  // rank 1's machine
  const char* said;
};
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }
class CollnetSetUp : public testing::TestWithParam<Refusal> {};

TEST_P(CollnetSetUp, ThatFailsOnOneRankIsOneLineAndTheRanksDoWithout) {
  COLLNET_OR_SKIP(network, 2);
  std::vector<Process> running = network.begin(
      "reduce_often", 1, {"1000", "1", "1"},
      {{"NCCL_DEBUG", "WARN"}, {"NICCOLITE_COLLNET_SECONDS", "2"}}, {{}, GetParam().of_one});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(40)), 0) << process.output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("the network does not reduce here (CollNet)"),
                    testing::ContainsRegex(GetParam().said), HasSubstr("NCCL_COLLNET_ENABLE=0")));
  EXPECT_THAT(running[1].output(), Not(HasSubstr("the network does not reduce")));
}

const Refusal kRefusals[] = {
    {"NoHardware", {{"COLLNET_FAULT", "hardware"}}, "rank 1: CollNet plug-in Switch"},
    {"Init", {{"COLLNET_FAULT", "init"}}, "init failed with result 2"},
    {"NoSwitch", {{"COLLNET_FAULT", "switch"}}, "rank 1: [^;]*connect failed with result 2"},
    {"Hangs", {{"COLLNET_FAULT", "hangs"}}, "rank 1: [^;]*connect takes longer than 2 s"},
    {"AnotherGroup", {{"COLLNET_FAULT", "group"}}, "rank"},
    {"NeverDone",
     {{"COLLNET_FAULT", "never"}},
     "rank 1: [^;]*its first iallreduce takes longer than 2 s"},
    {"Refuses", {{"COLLNET_FAULT", "refuses"}}, "failed with result 2"},
};
INSTANTIATE_TEST_SUITE_P(, CollnetSetUp, testing::ValuesIn(kRefusals),
                         testing::PrintToStringParamName());

// ---- what fails later: an error on every rank

struct Failure {
  const char* name;
  const char* fault;
  const char* said;
};
std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.name; }
class CollnetFailure : public testing::TestWithParam<Failure> {};

TEST_P(CollnetFailure, IsAnErrorOnEveryRank) {
  COLLNET_OR_SKIP(network, 2);
  std::vector<Process> running =
      network.begin("reduce_through_network", 2, {"100000", "1000000"},
                    {{"NCCL_ALGO", "CollnetDirect"}, {"COLLNET_FAULT", GetParam().fault}});
  if (*GetParam().fault == 0) {
    EXPECT_TRUE(running[0].wait_for_line("BEGUN 2")) << running[0].output();
    network.kill_switch();
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(20)), 3) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr("ENDED"), HasSubstr("network reduction"),
                      HasSubstr("CollNet plug-in Switch"), HasSubstr(GetParam().said),
                      HasSubstr("NCCL_COLLNET_ENABLE=0")));
  }
}
const Failure kFailures[] = {{"TheSwitchDies", "", "failed with result 2"},
                             {"IallreduceFails", "refuses:5", "iallreduce failed with result 2"}};
INSTANTIATE_TEST_SUITE_P(, CollnetFailure, testing::ValuesIn(kFailures),
                         testing::PrintToStringParamName());

// The plug-in is there, and nobody asks for it; or the machines are too few.
TEST(CollnetThatNobodyWants, IsNotLookedAt) {
  COLLNET_OR_SKIP(network, 2);
  for (const auto& [name, value] :
       {std::pair("NCCL_COLLNET_ENABLE", "0"), std::pair("NCCL_COLLNET_NODE_THRESHOLD", "3")}) {
    std::vector<Process> running = network.begin("reduce_often", 1, {"1000", "1", "1"},
                                                 {{name, value}, {"COLLNET_FAULT", "init"}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(40)), 0) << process.output();
      EXPECT_THAT(process.output(), Not(HasSubstr("CollNet")));
    }
  }
}

}  // namespace
}  // namespace niccolite::test
