// Ranks on several machines: processes of this one that NCCL_HOSTID makes hosts of their own, and
// that reach each other by sockets alone.

#include <dlfcn.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <nccl_device.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

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

Process::Environment on_machine(int number, Process::Environment environment = {}) {
  environment["NCCL_HOSTID"] = "machine" + std::to_string(number);
  return environment;
}

class Machines : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int machines() const { return std::get<0>(GetParam()); }
  int devices() const { return std::get<1>(GetParam()); }

  // A process per machine, with the role's own arguments first.
  std::vector<Process> run(const std::string& role, const Arguments& first,
                           const Process::Environment& environment = {}) {
    std::vector<Process> running;
    for (int machine = 0; machine < machines(); ++machine) {
      Arguments arguments = first;
      for (const int number : {machines() * devices(), machine * devices(), devices()})
        arguments.push_back(std::to_string(number));
      running.emplace_back(role, arguments, on_machine(machine, environment));
    }
    return running;
  }
};

TEST_P(Machines, AllReduceIsRightOnEveryRank) {
  std::vector<Process> running =
      run("reduce", {make_id()}, {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("via NET/Socket/0"));
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

TEST_P(Machines, EveryOperationIsRightOnEveryRank) {
  std::vector<Process> running = run("perform", {make_id(), make_id()});
  // Half a minute with a sanitizer, and more beside other work.
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

/// Whatever else would be chosen.
TEST_P(Machines, EveryAlgorithmThatLooksAtThemIsRight) {
  for (const char* const algorithms : {"hierarchical", "tree,hierarchical", "recursive_doubling"}) {
    std::vector<Process> running =
        run("reduce", {make_id()},
            {{"NCCL_ALGO", algorithms}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "TUNING"}});
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    if (algorithms == std::string_view("hierarchical")) {
      EXPECT_THAT(running[0].output(), HasSubstr("Algo HIERARCHICAL proto SIMPLE"));
    }
  }
}

TEST_P(Machines, EveryOperationIsRightHierarchically) {
  std::vector<Process> running =
      run("perform", {make_id(), make_id()}, {{"NCCL_ALGO", "hierarchical"}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Machines, SeveralSocketsChangeNothing) {
  std::vector<Process> running =
      run("reduce", {make_id()}, {{"NCCL_SOCKET_NTHREADS", "2"}, {"NCCL_NSOCKS_PERTHREAD", "2"}});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

// Two ranks take as many proxies as both have; several channels, so that all have a share.
TEST_P(Machines, SeveralProxiesChangeNothing) {
  const Arguments first{make_id(), make_id()};
  std::vector<Process> running;
  for (int machine = 0; machine < machines(); ++machine) {
    Arguments arguments = first;
    for (const int number : {machines() * devices(), machine * devices(), devices()})
      arguments.push_back(std::to_string(number));
    running.emplace_back("perform", arguments,
                         on_machine(machine, {{"NICCOLITE_NET_PROXIES", machine == 0 ? "4" : "2"},
                                              {"NCCL_MIN_CTAS", "4"}}));
  }
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Machines, EveryOperationIsRightByWords) {
  std::vector<Process> running =
      run("perform", {make_id(), make_id()},
          {{"NCCL_PROTO", "LL"}, {"NICCOLITE_NET_PROXIES", "2"}, {"NCCL_MIN_CTAS", "2"}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Machines, AllReduceIsByTheProtocolThatIsAskedFor) {
  std::vector<Process> running =
      run("reduce", {make_id()},
          {{"NCCL_PROTO", "LL"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "TUNING"}});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(), HasSubstr("proto LL"));
  EXPECT_THAT(running[0].output(), Not(HasSubstr("proto SIMPLE")));
}

TEST_P(Machines, ASuspendedCommunicatorWorksAsBefore) {
  std::vector<Process> running = run("suspend", {make_id(), make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

/// A machine of two switches with two GPUs and a network device each.
std::string two_rails() {
  std::string text = "<system version='1'><cpu numaid='0'>";
  for (const int rail : {0, 1}) {
    text += fmt::format("<pci busid='0000:{}0:00.0' class='0x060400'>", rail + 1);
    for (const int device : {rail, rail + 2})
      text +=
          fmt::format("<pci busid='0000:{}{}:00.0' class='0x030200'><gpu dev='{}' sm='90'/></pci>",
                      rail + 1, device + 1, device);
    text += fmt::format(
        "<pci busid='0000:{0}9:00.0' class='0x020000'><nic><net name='none{1}' dev='{1}' "
        "speed='25000'/></nic></pci></pci>",
        rail + 1, rail);
  }
  return text + "</cpu></system>";
}

// One enters a machine by the first rail and leaves by the second, the other the other way.
TEST(MachinesWithRails, HaveARingForEachAndEveryOperationIsRight) {
  const std::string path = testing::TempDir() + "/niccolite_rails_" + std::to_string(getpid());
  std::ofstream(path) << two_rails();
  const std::string one = make_id(), two = make_id();
  std::vector<Process> running;
  for (const int machine : {0, 1})
    running.emplace_back("perform", Arguments{one, two, "4", std::to_string(2 * machine), "2"},
                         on_machine(machine, {{"NCCL_TOPO_FILE", path},
                                              {"NCCL_ALGO", "ring"},
                                              {"NCCL_MIN_CTAS", "2"},
                                              {"NCCL_DEBUG", "INFO"},
                                              {"NCCL_DEBUG_SUBSYS", "GRAPH"}}));
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
  EXPECT_THAT(running[0].output(), HasSubstr("Channel 00/02 : 0 1 3 2"));
  EXPECT_THAT(running[0].output(), HasSubstr("Channel 01/02 : 1 0 2 3"));
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(, Machines,
                         testing::Values(std::tuple(2, 1), std::tuple(2, 2), std::tuple(3, 2)));

TEST_P(Machines, SplitsWorkAsTheirParentsDo) {
  std::vector<Process> running = run("splitter", {make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

// id nranks first count: what is told of who reaches whose memory.
ROLE(teams) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  const int count = std::stoi(arguments[3]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, count);
  for (int i = 0; i < count; ++i) {
    const auto comm = ranks.comms[static_cast<size_t>(i)];
    const ncclTeam_t lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    REQUIRE_NCCL(ncclCommQueryProperties(comm, &properties));
    std::printf("RANK %d LSA %d of %d RAIL %d of %d by %d TEAMS %d RMA %d\n", first + i, lsa.rank,
                lsa.nRanks, rail.rank, rail.nRanks, rail.stride, properties.nLsaTeams,
                properties.hostRmaSupport);
  }
  // Windows have an address for each rank of this machine, and none for others.
  std::vector<void*> memory(ranks.comms.size());
  std::vector<ncclWindow_t> windows(ranks.comms.size());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < memory.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(&memory[i], 4096));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], 4096, &windows[i],
                                        NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < memory.size(); ++i) {
    void* user = nullptr;
    REQUIRE_NCCL(ncclWinGetUserPtr(ranks.comms[i], windows[i], &user));
    if (user != memory[i]) return 1;
    for (int peer = 0; peer < nranks; ++peer) {
      const bool is_here = first <= peer && peer < first + count;
      void *by_rank = nullptr, *by_team = nullptr;
      REQUIRE_NCCL(ncclGetPeerDevicePointer(windows[i], 8, peer, &by_rank));
      if (is_here) REQUIRE_NCCL(ncclGetLsaDevicePointer(windows[i], 8, peer - first, &by_team));
      if ((by_rank != nullptr) != is_here || by_rank != by_team) return 2;
      if (is_here) *static_cast<int*>(by_rank) = 1000 + peer;
      if (is_here && static_cast<int*>(memory[static_cast<size_t>(peer - first)])[2] != 1000 + peer)
        return 3;
    }
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  ranks.destroy();
  return 0;
}

TEST_P(Machines, AreTeamsOfThoseWhoReachEachOthersMemory) {
  std::vector<Process> running = run("teams", {make_id()});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  for (int rank = 0; rank < machines() * devices(); ++rank)
    EXPECT_THAT(running[static_cast<size_t>(rank / devices())].output(),
                HasSubstr(fmt::format("RANK {} LSA {} of {} RAIL {} of {} by {} TEAMS {} RMA 1",
                                      rank, rank % devices(), devices(), rank / devices(),
                                      machines(), devices(), machines())));
}

// id nranks first count: a child of each machine's ranks, used once.
ROLE(splitter_by_machine) {
  const int count = std::stoi(arguments[3]);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), count);
  const auto local = static_cast<size_t>(count);
  std::vector<ncclComm_t> children(local);
  std::vector<float*> buffers(local);
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < local; ++i)
    REQUIRE_NCCL(ncclCommSplit(ranks.comms[i], std::stoi(arguments[2]), static_cast<int>(i),
                               &children[i], nullptr));
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < local; ++i) {
    REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[2]) + static_cast<int>(i)));
    REQUIRE_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffers[i]), 8));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < local; ++i)
    REQUIRE_NCCL(ncclAllReduce(buffers[i], buffers[i], 2, ncclFloat, ncclSum, children[i],
                               ranks.streams[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < local; ++i) {
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[i]));
    REQUIRE_CUDA(cudaFree(buffers[i]));
    REQUIRE_NCCL(ncclCommDestroy(children[i]));
  }
  ranks.destroy();
  return 0;
}

// Whichever machine it is, a child that lies on it alone has all protocols and no network.
TEST_P(Machines, AChildOfOneKnowsNoOther) {
  if (devices() < 2) GTEST_SKIP() << "a child of one rank has nothing to send";
  std::vector<Process> running =
      run("splitter_by_machine", {make_id()},
          {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "TUNING,P2P,NET"}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("proto LL"));
    EXPECT_THAT(process.output(), Not(HasSubstr("proto SIMPLE")));
    EXPECT_THAT(process.output(), Not(HasSubstr("via NET")));
  }
}

// ---- a network plug-in carries (examples/net_plugin)

std::string plugin(const std::string& what) {
  return std::string(NET_PLUGINS) + "/libnccl-net-" + what + ".so";
}

/// All end well, and the log of each names the plug-in of the example.
void expect_the_plugin_serves(std::vector<Process>& running) {
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("via NET/Unix/0"));
  }
}

TEST_P(Machines, APluginCarriesEveryOperation) {
  std::vector<Process> running =
      run("perform", {make_id(), make_id()}, {{"NCCL_NET_PLUGIN", plugin("NOTHING")}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Machines, APluginCarriesEveryOperationByWords) {
  std::vector<Process> running =
      run("perform", {make_id(), make_id()},
          {{"NCCL_NET_PLUGIN", plugin("NOTHING")}, {"NCCL_PROTO", "LL"}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

// As NVIDIA's plug-in for SHARP does.
TEST_P(Machines, APluginThatCompletesItsTableInInitServes) {
  std::vector<Process> running = run("reduce", {make_id()},
                                     {{"NCCL_NET_PLUGIN", plugin("LATE")},
                                      {"NCCL_NET", "unix"},
                                      {"NCCL_DEBUG", "INFO"},
                                      {"NCCL_DEBUG_SUBSYS", "ALL"}});
  expect_the_plugin_serves(running);
}

// As google's fast socket, which leaves test()'s sizes alone.
TEST_P(Machines, APluginThatTellsNoSizesCarriesEveryOperation) {
  std::vector<Process> running =
      run("perform", {make_id(), make_id()}, {{"NCCL_NET_PLUGIN", plugin("SIZES")}});
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

TEST_P(Machines, APluginOfTheNameThatIsAskedForServes) {
  std::vector<Process> running =
      run("reduce", {make_id()},
          {{"NCCL_NET_PLUGIN", "none-such," + plugin("INIT") + "," + plugin("NOTHING")},
           {"NCCL_NET", "unix"},
           {"NCCL_DEBUG", "INFO"},
           {"NCCL_DEBUG_SUBSYS", "ALL"}});
  expect_the_plugin_serves(running);
  for (Process& process : running) EXPECT_THAT(process.output(), Not(HasSubstr("via NET/Socket")));
}

/// What the plug-in of the example has been asked to register: so far, and what of it it still has.
std::pair<int, int> registrations(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {-1, -1};
  std::pair<int, int> counts;
  reinterpret_cast<void (*)(int*, int*)>(dlsym(library, "unix_registrations"))(&counts.first,
                                                                               &counts.second);
  dlclose(library);
  return counts;
}

// id nranks first count plugin: prints what is registered after the first operations, after many,
// and at the end.
ROLE(registers_once) {
  void* const kept = dlopen(arguments[4].c_str(), RTLD_NOW);  // to ask it at the end
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
                   std::stoi(arguments[3]));
  bool is_right = true;
  // The second one has waited for credit from the next rank, which comes by a connection of its
  // own.
  for (int i = 0; i < 3; ++i) is_right &= ranks.all_reduce(100);
  std::printf("FIRST %d\n", registrations(arguments[4]).first);
  // Other sizes, and with them other buffers of the user.
  for (int i = 1; i < 30; ++i) is_right &= ranks.all_reduce(static_cast<size_t>(i) * 5'000);
  std::printf("MANY %d\n", registrations(arguments[4]).first);
  ranks.destroy();
  std::printf("LEFT %d\n", registrations(arguments[4]).second);
  dlclose(kept);
  return is_right ? 0 : 1;
}

TEST(NetworkPlugin, RegistersMemoryOnceForAConnection) {
  const std::string id = make_id(), file = plugin("NOTHING");
  std::vector<Process> running;
  for (const int rank : {0, 1, 2})
    running.emplace_back(
        "registers_once", Arguments{id, "3", std::to_string(rank), "1", file},
        on_machine(rank, {{"NCCL_NET_PLUGIN", file}, {"NCCL_ALGO", "allreduce:ring"}}));
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    // One for what is sent to one neighbor and got from the other, and for the credit of each.
    EXPECT_THAT(process.output(), HasSubstr("FIRST 4\n"));
    EXPECT_THAT(process.output(), HasSubstr("MANY 4\n"));
    EXPECT_THAT(process.output(), HasSubstr("LEFT 0\n"));
  }
}

TEST(NetworkPlugin, IsFoundByItsShortName) {
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back("reduce", Arguments{id, "2", std::to_string(rank), "1"},
                         on_machine(rank, {{"NCCL_NET_PLUGIN", "NOTHING"},
                                           {"LD_LIBRARY_PATH", NET_PLUGINS},
                                           {"NCCL_DEBUG", "INFO"},
                                           {"NCCL_DEBUG_SUBSYS", "ALL"}}));
  expect_the_plugin_serves(running);
}

struct Lie {
  std::string what;
  std::string named;
};

class LyingPlugin : public testing::TestWithParam<Lie> {};

// It is named, and sockets serve, as nobody asked for it by NCCL_NET.
TEST_P(LyingPlugin, IsNamedAndSocketsServe) {
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back("reduce", Arguments{id, "2", std::to_string(rank), "1"},
                         on_machine(rank, {{"NCCL_NET_PLUGIN", plugin(GetParam().what)}}));
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr(GetParam().named));
    EXPECT_THAT(process.output(), HasSubstr("libnccl-net-" + GetParam().what + ".so"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , LyingPlugin,
    testing::Values(Lie{"MISSING", "dlopen cannot open it"}, Lie{"SYMBOL", "ncclNetPlugin_v6"},
                    Lie{"TABLE", "its table has no test"}, Lie{"INIT", "init failed with result 2"},
                    Lie{"COUNT", "devices finds -1 network devices"}, Lie{"COMMS", "maxComms 0"},
                    Lie{"SPEED", "a speed of -5 Mbit/s"}),
    [](const auto& lie) { return lie.param.what; });

// Nobody names them, the loader finds them, and they do not load: what each would have done is
// said.
TEST(PluginsOfDefaultNames, ThatDoNotLoadAreNamed) {
  const std::string folder = "/tmp/niccolite-default-plugins-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  for (const char* kind : {"net", "tuner", "profiler", "env"})
    std::ofstream(folder + "/libnccl-" + kind + ".so") << "no library";
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back("reduce", Arguments{id, "2", std::to_string(rank), "1"},
                         on_machine(rank, {{"LD_LIBRARY_PATH", folder}}));
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("network plug-in libnccl-net.so: "));
    EXPECT_THAT(process.output(), HasSubstr("sockets serve instead: TCP"));
    EXPECT_THAT(process.output(), HasSubstr("tuner plug-in libnccl-tuner.so: "));
    EXPECT_THAT(process.output(), HasSubstr("profiler plug-in libnccl-profiler.so: "));
    EXPECT_THAT(process.output(), HasSubstr("environment plug-in libnccl-env.so: "));
  }
  std::filesystem::remove_all(folder);
}

// As NCCL_NET does, which comes before it.
TEST(NetworkPlugin, IsChosenByTheConfigurationToo) {
  const auto used = [](const char* configured, Process::Environment environment) {
    environment.insert({{"NCCL_DEBUG", "INFO"}, {"NCCL_NET_PLUGIN", plugin("NOTHING")}});
    Process process("configured", {configured}, environment);
    EXPECT_EQ(process.wait(), 0) << process.output();
    const size_t at = process.output().find("Using network ");
    return at == std::string::npos ? "" : process.output().substr(at + 14, 6);
  };
  EXPECT_EQ(used("Unix", {}), "Unix (");
  EXPECT_EQ(used("Socket", {}), "Socket");
  EXPECT_EQ(used("Unix", {{"NCCL_NET", "Socket"}}), "Socket");
  EXPECT_EQ(used("Socket", {{"NCCL_NET", "Unix"}}), "Unix (");
}

TEST(NetworkPlugin, ThatIsAskedForAndFailsIsAnError) {
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1})
    running.emplace_back(
        "reduce", Arguments{id, "2", std::to_string(rank), "1"},
        on_machine(rank, {{"NCCL_NET_PLUGIN", plugin("COMMS")}, {"NCCL_NET", "Unix"}}));
  for (Process& process : running) {
    EXPECT_NE(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("NCCL_NET='Unix'"));
    EXPECT_THAT(process.output(), HasSubstr("maxComms 0"));
  }
}

class KilledMachine
    : public testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

// Rank 2 is killed while the others wait for it.
TEST_P(KilledMachine, IsNamedAndNothingIsKept) {
  const std::string how = std::get<0>(GetParam());
  const std::string network = std::get<1>(GetParam());
  const Process::Environment environment{{"NCCL_NET_PLUGIN", network},
                                         {"NCCL_PROTO", std::get<2>(GetParam())}};
  const std::string id = make_id();
  std::vector<Process> survivors;
  for (const int rank : {0, 1})
    survivors.emplace_back("survivor", Arguments{id, "3", std::to_string(rank), how},
                           on_machine(rank, environment));
  Process victim("victim", {id, "3", "2"}, on_machine(2, environment));
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  for (Process& survivor : survivors)
    ASSERT_TRUE(survivor.wait_for_line("STARTED")) << survivor.output();
  victim.kill(SIGKILL);
  for (Process& survivor : survivors) {
    EXPECT_EQ(survivor.wait(seconds(30)), 0) << survivor.output();
    EXPECT_THAT(survivor.output(), HasSubstr("STATE 6"));  // ncclRemoteError
    EXPECT_THAT(survivor.output(), HasSubstr("rank 2"));
    EXPECT_THAT(survivor.output(), HasSubstr("WAITS 1"));
    EXPECT_THAT(survivor.output(), HasSubstr("LEFT OPEN 0"));
  }
}

std::string name_of_kill(const testing::TestParamInfo<KilledMachine::ParamType>& info) {
  const auto& [how, network, protocol] = info.param;
  return how + (network == "none" ? "" : "_plugin") + (protocol.empty() ? "" : "_" + protocol);
}

INSTANTIATE_TEST_SUITE_P(
    , KilledMachine,
    testing::Values(std::tuple("abort", "none", ""), std::tuple("destroy", "none", ""),
                    std::tuple("graph", "none", ""), std::tuple("abort", "none", "LL"),
                    std::tuple("destroy", "none", "LL"), std::tuple("graph", "none", "LL"),
                    std::tuple("abort", plugin("NOTHING"), ""),
                    std::tuple("graph", plugin("NOTHING"), "LL")),
    name_of_kill);

// id nranks first count: rank 0 sends what fits the connection, and leaves; the others receive
// when it has said so.
ROLE(leaves_early) {
  const int first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), 2, first, 1);
  constexpr size_t kCount = 10'000;
  std::vector<float> values(kCount, 7);
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  if (first == 0) {
    REQUIRE_CUDA(cudaMemcpy(buffer, values.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
    REQUIRE_NCCL(ncclSend(buffer, kCount, ncclFloat, 1, ranks.comms[0], ranks.streams[0]));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  } else {
    REQUIRE_NCCL(ncclRecv(buffer, kCount, ncclFloat, 0, ranks.comms[0], ranks.streams[0]));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    REQUIRE_CUDA(cudaMemcpy(values.data(), buffer, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  }
  ranks.destroy();
  for (const float value : values)
    if (value != 7) return 1;
  return 0;
}

TEST(MachinesAtTheEnd, WhatWasSentArrivesThoughTheSenderLeaves) {
  for (const char* const protocol : {"Simple", "LL"}) {
    const std::string id = make_id();
    Process sender("leaves_early", {id, "2", "0"}, on_machine(0, {{"NCCL_PROTO", protocol}}));
    Process receiver("leaves_early", {id, "2", "1"}, on_machine(1, {{"NCCL_PROTO", protocol}}));
    EXPECT_EQ(sender.wait(), 0) << sender.output();
    EXPECT_EQ(receiver.wait(), 0) << receiver.output();
  }
}

}  // namespace
}  // namespace niccolite::test
