// Profiler, tuner and environment plug-ins of NCCL's ABI: the examples, older versions, and ones
// that lie, fail or throw. Each in a process of its own, which opens its plug-ins once.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string plugin(const std::string& name) { return std::string(PLUGINS) + "/" + name + ".so"; }

// Two ranks of one process: a call by itself, a group of two, messages, a graph that runs twice.
ROLE(profiled) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  if (!ranks.all_reduce(1000)) return 1;
  constexpr size_t kCount = 512;
  std::vector<float*> buffers(2);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE_CUDA(cudaSetDevice(static_cast<int>(i)));
    REQUIRE_CUDA(cudaMalloc(&buffers[i], 4 * kCount * sizeof(float)));
  }
  const auto all_gather = [&] {
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 2; ++i)
      REQUIRE_NCCL(ncclAllGather(buffers[i], buffers[i] + 2 * kCount, kCount, ncclFloat,
                                 ranks.comms[i], ranks.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
  };
  all_gather();
  REQUIRE_NCCL(ncclGroupStart());
  REQUIRE_NCCL(ncclSend(buffers[0], kCount, ncclInt32, 1, ranks.comms[0], ranks.streams[0]));
  REQUIRE_NCCL(ncclRecv(buffers[1], kCount, ncclInt32, 0, ranks.comms[1], ranks.streams[1]));
  REQUIRE_NCCL(ncclGroupEnd());
  if (ranks.finish() != ncclSuccess) return 2;
  std::vector<cudaGraphExec_t> graphs(2);
  for (size_t i = 0; i < 2; ++i)
    REQUIRE_CUDA(cudaStreamBeginCapture(ranks.streams[i], cudaStreamCaptureModeRelaxed));
  all_gather();
  for (size_t i = 0; i < 2; ++i) {
    cudaGraph_t graph = nullptr;
    REQUIRE_CUDA(cudaStreamEndCapture(ranks.streams[i], &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&graphs[i], graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
  }
  for (int replay = 0; replay < 2; ++replay)
    for (size_t i = 0; i < 2; ++i) REQUIRE_CUDA(cudaGraphLaunch(graphs[i], ranks.streams[i]));
  if (ranks.finish() != ncclSuccess) return 3;
  for (size_t i = 0; i < 2; ++i) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[i]));
  ranks.destroy();
  std::printf("RIGHT\n");
  return 0;
}

class Folder {
 public:
  Folder() : path_("/tmp/niccolite-plugins-" + std::to_string(getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

struct Trace {
  nlohmann::json head;
  std::map<std::string, std::vector<nlohmann::json>> events;  // by kind; their "args"
  std::map<uint64_t, std::string> kinds;                      // by event
};

Trace read_trace(const std::string& folder, int rank) {
  Trace trace;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().string().ends_with("-" + std::to_string(rank) + ".json")) continue;
    trace.head = nlohmann::json::parse(std::ifstream(entry.path()));
    for (const nlohmann::json& event : trace.head["traceEvents"]) {
      trace.events[event["name"]].push_back(event["args"]);
      trace.kinds[event["args"]["id"]] = event["name"];
    }
  }
  return trace;
}

// Plays the role with the example, which leaves a trace of each rank in the folder.
void run_traced(const char* role, const Folder& folder, Process::Environment environment = {}) {
  environment.insert({{"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-trace")},
                      {"PROFILER_TRACE", folder.path() + "/trace"}});
  Process process(role, {}, environment);
  ASSERT_EQ(process.wait(), 0) << process.output();
}

TEST(ProfilerPlugin, TheExampleHearsOfEveryCallLaunchAndChannel) {
  const Folder folder;
  ASSERT_NO_FATAL_FAILURE(run_traced("profiled", folder));
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    Trace trace = read_trace(folder.path(), rank);
    ASSERT_FALSE(trace.events.empty());
    EXPECT_EQ(trace.head["ranks"], 2);
    EXPECT_EQ(trace.head["nodes"], 1);
    const auto parents_of = [&](const char* kind) {
      std::set<std::string> kinds;
      for (const nlohmann::json& event : trace.events[kind])
        kinds.insert(event["parent"] == 0 ? "none" : trace.kinds[event["parent"]]);
      return kinds;
    };
    // All-reduce, all-gather, and the captured one, which was called once and ran twice.
    EXPECT_EQ(trace.events["CollApi"].size(), 3u);
    EXPECT_EQ(trace.events["Coll"].size(), 4u);
    EXPECT_EQ(trace.events["P2pApi"].size(), 1u);
    EXPECT_EQ(trace.events["P2p"].size(), 1u);
    EXPECT_EQ(trace.events["KernelLaunch"].size(), 4u);
    EXPECT_EQ(parents_of("Coll"), std::set<std::string>{"CollApi"});
    EXPECT_EQ(parents_of("P2p"), std::set<std::string>{"P2pApi"});
    EXPECT_EQ(parents_of("KernelCh"), (std::set<std::string>{"Coll", "P2p"}));
    size_t channels = 0;
    for (const nlohmann::json& event : trace.events["Coll"]) {
      EXPECT_THAT((std::set<std::string>{"AllReduce", "AllGather"}),
                  testing::Contains(event["function"]));
      EXPECT_EQ(event["type"], "ncclFloat32");
      EXPECT_GT(event["channels"], 0);
      channels += event["channels"].get<size_t>();
    }
    const nlohmann::json message = trace.events["P2p"].front();
    EXPECT_EQ(message["function"], rank == 0 ? "Send" : "Recv");
    EXPECT_EQ(message["peer"], 1 - rank);
    EXPECT_EQ(message["type"], "ncclInt32");
    channels += message["channels"].get<size_t>();
    EXPECT_EQ(trace.events["KernelCh"].size(), channels);
    std::vector<bool> captured;
    for (const nlohmann::json& event : trace.events["CollApi"])
      captured.push_back(event["captured"] == 1);
    EXPECT_EQ(captured, (std::vector<bool>{false, false, true}));
  }
  // Groups of both ranks' calls belong to the first one's plug-in context.
  const Trace first = read_trace(folder.path(), 0);
  EXPECT_GE(first.events.at("GroupApi").size(), 3u);
}

// Two ranks of one process: a group in which each rank calls three collectives.
ROLE(profiled_group) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  std::vector<int*> buffers(2);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE_CUDA(cudaSetDevice(static_cast<int>(i)));
    REQUIRE_CUDA(cudaMalloc(&buffers[i], sizeof(int)));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i)
    for (int root = 0; root < 3; ++root)
      REQUIRE_NCCL(ncclBcast(buffers[i], 1, ncclInt, root % 2, ranks.comms[i], ranks.streams[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  for (cudaStream_t stream : ranks.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (int* buffer : buffers) REQUIRE_CUDA(cudaFree(buffer));
  ranks.destroy();
  return 0;
}

TEST(ProfilerPlugin, HearsOfEveryCallOfAGroup) {
  const Folder folder;
  ASSERT_NO_FATAL_FAILURE(run_traced("profiled_group", folder));
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    Trace trace = read_trace(folder.path(), rank);
    std::multiset<uint64_t> calls, parents;
    for (const nlohmann::json& event : trace.events["CollApi"])
      calls.insert(event["id"].get<uint64_t>());
    for (const nlohmann::json& event : trace.events["Coll"])
      parents.insert(event["parent"].get<uint64_t>());
    EXPECT_EQ(calls.size(), 3u);
    EXPECT_EQ(parents, calls);
  }
}

// Two ranks of one process: each sends to itself, twice in one group.
ROLE(profiled_self) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  constexpr size_t kCount = 1000;
  std::vector<int*> buffers(2);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE_CUDA(cudaSetDevice(static_cast<int>(i)));
    REQUIRE_CUDA(cudaMalloc(&buffers[i], 4 * kCount * sizeof(int)));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i);
    for (size_t message = 0; message < 2; ++message) {
      int* const data = buffers[at] + 2 * message * kCount;
      REQUIRE_NCCL(ncclSend(data, kCount, ncclInt, i, ranks.comms[at], ranks.streams[at]));
      REQUIRE_NCCL(ncclRecv(data + kCount, kCount, ncclInt, i, ranks.comms[at], ranks.streams[at]));
    }
  }
  REQUIRE_NCCL(ncclGroupEnd());
  for (cudaStream_t stream : ranks.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (int* buffer : buffers) REQUIRE_CUDA(cudaFree(buffer));
  ranks.destroy();
  return 0;
}

TEST(ProfilerPlugin, HearsOfReceivesFromTheOwnRank) {
  const Folder folder;
  ASSERT_NO_FATAL_FAILURE(run_traced("profiled_self", folder));
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    Trace trace = read_trace(folder.path(), rank);
    std::multiset<uint64_t> calls, parents;
    std::multiset<std::string> functions;
    for (const nlohmann::json& event : trace.events["P2pApi"])
      calls.insert(event["id"].get<uint64_t>());
    size_t channels = 0;
    for (const nlohmann::json& event : trace.events["P2p"]) {
      parents.insert(event["parent"].get<uint64_t>());
      functions.insert(event["function"]);
      EXPECT_EQ(event["peer"], rank);
      EXPECT_GT(event["channels"], 0);
      channels += event["channels"].get<size_t>();
    }
    EXPECT_EQ(calls.size(), 4u);
    EXPECT_EQ(parents, calls);
    EXPECT_EQ(functions, (std::multiset<std::string>{"Send", "Send", "Recv", "Recv"}));
    EXPECT_EQ(trace.events["KernelCh"].size(), channels);
  }
}

TEST(ProfilerPlugin, HearsOfNothingThatItsMaskLeavesOut) {
  const Folder folder;
  ASSERT_NO_FATAL_FAILURE(run_traced("profiled", folder, {{"PROFILER_MASK", "0x2"}}));
  const Trace trace = read_trace(folder.path(), 0);
  EXPECT_TRUE(trace.events.contains("Coll"));
  EXPECT_TRUE(trace.events.contains("CollApi"));  // above it
  EXPECT_FALSE(trace.events.contains("P2p"));
  EXPECT_FALSE(trace.events.contains("KernelCh"));
  EXPECT_FALSE(trace.events.contains("KernelLaunch"));
}

TEST(ProfilerPlugin, TablesOfOldVersionsServe) {
  struct Old {
    int version;
    const char* collective;
  };
  for (const Old& old : {Old{1, "EVENT 2 below 1: function 4 type 7 count 1000"},
                         Old{2, "EVENT 2 below 1: AllReduce ncclFloat32 count 1000 SIMPLE"},
                         Old{3, "EVENT 2 below 1: AllReduce ncclFloat32 count 1000 SIMPLE"},
                         Old{4, "EVENT 2 below 1: AllReduce ncclFloat32 count 1000 SIMPLE"},
                         Old{6, "EVENT 2 below 512: AllReduce ncclFloat32 count 1000 SIMPLE"}}) {
    SCOPED_TRACE(old.version);
    const std::string name = "libnccl-profiler-hostile" + std::to_string(old.version);
    Process process("profiled", {},
                    {{"NCCL_PROFILER_PLUGIN", plugin(name)}, {"NCCL_PROTO", "Simple"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr(old.collective), HasSubstr("FINALIZED")));
    EXPECT_EQ(process.output().find("EVENT 64") != std::string::npos, old.version >= 3);
    EXPECT_EQ(process.output().find("EVENT 256") != std::string::npos, old.version >= 5);
  }
}

// id nranks rank: a rank of its own machine. An all-reduce, one of a graph that runs twice, and a
// message to the next rank.
ROLE(profiled_remote) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  if (!ranks.all_reduce(100'000)) return 1;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(ranks.streams[0], cudaStreamCaptureModeRelaxed));
  REQUIRE_NCCL(ranks.queue(100'000));
  REQUIRE_CUDA(cudaStreamEndCapture(ranks.streams[0], &graph));
  REQUIRE_CUDA(cudaGraphInstantiate(&replayed, graph, 0));
  for (int replay = 0; replay < 2; ++replay)
    REQUIRE_CUDA(cudaGraphLaunch(replayed, ranks.streams[0]));
  if (ranks.finish() != ncclSuccess) return 2;
  float* buffer = nullptr;
  constexpr size_t kCount = 5000;
  REQUIRE_CUDA(cudaMalloc(&buffer, 2 * kCount * sizeof(float)));
  REQUIRE_NCCL(ncclGroupStart());
  REQUIRE_NCCL(
      ncclSend(buffer, kCount, ncclFloat, (rank + 1) % nranks, ranks.comms[0], ranks.streams[0]));
  REQUIRE_NCCL(ncclRecv(buffer + kCount, kCount, ncclFloat, (rank + nranks - 1) % nranks,
                        ranks.comms[0], ranks.streams[0]));
  REQUIRE_NCCL(ncclGroupEnd());
  if (ranks.finish() != ncclSuccess) return 3;
  if (!ranks.all_reduce(100'000)) return 4;
  REQUIRE_CUDA(cudaGraphExecDestroy(replayed));
  REQUIRE_CUDA(cudaGraphDestroy(graph));
  REQUIRE_CUDA(cudaFree(buffer));
  ranks.destroy();
  std::printf("RIGHT\n");
  return 0;
}

void run_on_two_machines(const Process::Environment& environment) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> running;
  for (const int rank : {0, 1}) {
    Process::Environment own = environment;
    own.emplace("NCCL_HOSTID", "machine" + std::to_string(rank));
    running.emplace_back("profiled_remote", Arguments{to_text(id), "2", std::to_string(rank)}, own);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
  }
}

// Each operation has its share of each connection, each share all its steps: of replays, too.
TEST(ProfilerPlugin, HearsOfEveryStepOfTheProxies) {
  for (const bool has_network_plugin : {false, true}) {
    SCOPED_TRACE(has_network_plugin);
    const Folder folder;
    Process::Environment environment{{"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-trace")},
                                     {"PROFILER_TRACE", folder.path() + "/trace"}};
    if (has_network_plugin)
      environment.emplace("NCCL_NET_PLUGIN", std::string(NET_PLUGINS) + "/libnccl-net-NOTHING.so");
    run_on_two_machines(environment);
    for (const int rank : {0, 1}) {
      SCOPED_TRACE(rank);
      Trace trace = read_trace(folder.path(), rank);
      ASSERT_FALSE(trace.events["ProxyOp"].empty());
      std::map<uint64_t, int> steps, found;           // by ProxyOp
      std::map<uint64_t, std::set<bool>> directions;  // by the operation above
      for (const nlohmann::json& event : trace.events["ProxyOp"]) {
        const std::string& parent = trace.kinds[event["parent"]];
        EXPECT_TRUE(parent == "Coll" || parent == "P2p") << parent;
        EXPECT_EQ(event["peer"], 1 - rank);
        steps[event["id"]] = event["steps"];
        directions[event["parent"]].insert(event["send"] == 1);
      }
      for (const nlohmann::json& event : trace.events["ProxyStep"]) {
        EXPECT_EQ(trace.kinds[event["parent"]], "ProxyOp");
        EXPECT_EQ(event["step"], found[event["parent"]]++);
      }
      EXPECT_EQ(found, steps);
      // Two all-reduces by themselves and two replays, which send and receive; a send, a receive.
      EXPECT_EQ(trace.events["Coll"].size(), 4u);
      EXPECT_EQ(directions.size(), 6u);
      for (const nlohmann::json& event : trace.events["Coll"])
        EXPECT_EQ(directions[event["id"]].size(), 2u);
      EXPECT_FALSE(trace.events["ProxyCtrl"].empty());
      for (const nlohmann::json& event : trace.events["ProxyCtrl"]) EXPECT_EQ(event["parent"], 0);
      EXPECT_NE(trace.events["NetPlugin"].empty(), has_network_plugin);
      for (const nlohmann::json& event : trace.events["NetPlugin"])
        EXPECT_EQ(trace.kinds[event["parent"]], "ProxyStep");
    }
  }
}

TEST(ProfilerPlugin, TablesOfAllVersionsHearOfProxies) {
  for (const int version : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(version);
    run_on_two_machines(
        {{"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-hostile" + std::to_string(version))}});
  }
}

// Whatever both plug-ins tell each other through us.
TEST(ProfilerPlugin, ANetworkPluginThatTellsNonsenseCostsNothing) {
  for (const char* misdeed : {"", "start fails", "start throws", "stop throws", "record throws"}) {
    SCOPED_TRACE(misdeed);
    run_on_two_machines({{"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-hostile6")},
                         {"HOSTILE", misdeed},
                         {"NCCL_NET_PLUGIN", std::string(NET_PLUGINS) + "/libnccl-net-EVENTS.so"}});
  }
}

struct Misdeed {
  std::string what;
  std::string said;  // empty: nothing
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ProfilerPlugin, OneThatMisbehavesCostsOneLineAndNothingElse) {
  for (const Misdeed& misdeed :
       {Misdeed{"init fails", "init failed with result 3; nothing more is profiled"},
        Misdeed{"init throws", "init threw an exception; nothing more is profiled"},
        Misdeed{"start fails", "startEvent failed with result 3"},
        Misdeed{"start throws", "startEvent threw an exception"},
        Misdeed{"start gives nothing", ""}, Misdeed{"stop fails", "stopEvent failed with result 3"},
        Misdeed{"stop throws", "stopEvent threw an exception"},
        Misdeed{"record throws", "recordEventState threw an exception"},
        Misdeed{"finalize throws", "finalize threw an exception"}, Misdeed{"mask lies", ""},
        Misdeed{"no context", ""}}) {
    SCOPED_TRACE(misdeed.what);
    Process process("profiled", {},
                    {{"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-hostile6")},
                     {"HOSTILE", misdeed.what},
                     {"NCCL_DEBUG", "WARN"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
    const bool has_end = process.output().find("FINALIZED") != std::string::npos;
    EXPECT_TRUE(!has_end || misdeed.what != "no context") << process.output();
    const size_t warnings = count_of(process.output(), "NCCL WARN");
    if (misdeed.said.empty()) {
      EXPECT_EQ(warnings, 0u) << process.output();
    } else {
      EXPECT_THAT(process.output(), HasSubstr(misdeed.said));
      EXPECT_LE(warnings, 2u) << process.output();  // a line for each rank
    }
  }
}

TEST(ProfilerPlugin, OneThatDoesNotOpenIsNamed) {
  Process process("profiled", {}, {{"NCCL_PROFILER_PLUGIN", "none-such"}, {"NCCL_DEBUG", "WARN"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), AllOf(HasSubstr("profiler plug-in none-such"),
                                      HasSubstr("libnccl-profiler-none-such.so")));
  EXPECT_EQ(count_of(process.output(), "NCCL WARN"), 1u);
}

// ---- tuner plug-ins

// id nranks rank: all-reduces of 1,000 and of 1,000,000 floats, by itself and in a group with a
// broadcast.
ROLE(tuned) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  for (const size_t count : {1000, 1'000'000, 1000})
    if (!ranks.all_reduce(count)) return 1;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, 1 << 20));
  REQUIRE_NCCL(ncclGroupStart());
  REQUIRE_NCCL(ncclBroadcast(buffer, buffer, 100, ncclFloat, 0, ranks.comms[0], ranks.streams[0]));
  REQUIRE_NCCL(ncclAllReduce(buffer + 100, buffer + 100, 100, ncclFloat, ncclSum, ranks.comms[0],
                             ranks.streams[0]));
  REQUIRE_NCCL(ncclGroupEnd());
  if (ranks.finish() != ncclSuccess) return 2;
  REQUIRE_CUDA(cudaFree(buffer));
  ranks.destroy();
  std::printf("RIGHT\n");
  return 0;
}

std::string make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return to_text(id);
}

/// The output of rank 0 of three, each a process; the others have `others`.
std::string run_tuned(const Process::Environment& first, const Process::Environment& others) {
  const std::string id = make_id();
  std::vector<Process> running;
  for (const int rank : {0, 1, 2}) {
    Process::Environment environment = rank == 0 ? first : others;
    environment.emplace("NCCL_DEBUG", "INFO");
    environment.emplace("NCCL_DEBUG_SUBSYS", "ALL");
    environment.emplace("NCCL_MIN_CTAS", "4");
    environment.emplace("NCCL_MAX_CTAS", "4");
    running.emplace_back("tuned", Arguments{id, "3", std::to_string(rank)}, environment);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
  }
  return running[0].output();
}

TEST(TunerPlugin, TheExampleChoosesByItsTableForAllRanks) {
  const Folder folder;
  const std::string table = folder.path() + "/table";
  std::ofstream(table) << "allreduce,0,4000,ring,simple,2\nallreduce,4001,100000000,nvls,simple,3\n"
                          "broadcast,0,400,collnet_chain,ll,1\n";
  const std::string other = folder.path() + "/other";
  std::ofstream(other) << "allreduce,0,100000000,pat,ll,1\n";
  const std::string library = plugin("libnccl-tuner-table");
  // Whatever plug-ins other ranks have, or none.
  for (const Process::Environment& others :
       {Process::Environment{{"NCCL_TUNER_PLUGIN", library}, {"TUNER_FILE", table}},
        Process::Environment{{"NCCL_TUNER_PLUGIN", library}, {"TUNER_FILE", other}},
        Process::Environment{}}) {
    const std::string output =
        run_tuned({{"NCCL_TUNER_PLUGIN", library}, {"TUNER_FILE", table}}, others);
    EXPECT_THAT(
        output,
        AllOf(HasSubstr("TUNER/Plugin: Table"),
              HasSubstr("3 lines from " + table + " for 3 ranks on 1 nodes"),
              testing::ContainsRegex(
                  "of 4000 bytes: tuner plug-in .* has ring[a-z_]* Simple 2 where"),
              testing::ContainsRegex(
                  "of 4000000 bytes: tuner plug-in .* has (one|two)_shot[a-z_]* Simple 3 where"),
              testing::ContainsRegex("AllReduce: 4000 Bytes -> Algo RING[A-Z_]* proto SIMPLE"),
              testing::ContainsRegex("AllReduce: 4000000 Bytes -> Algo (ONE|TWO)_SHOT"),
              HasSubstr("collnet_chain with ll is not available")));
  }
}

// Three ranks of one process: an all-reduce of 1,000 floats on each communicator made of theirs.
ROLE(tuned_children) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 3, 0, 3);
  if (!ranks.all_reduce(1000)) return 1;
  const std::vector<ncclComm_t> members = ranks.comms;
  std::vector<ncclComm_t> split(3), shrunk(2), grown(3);
  int last = 2;
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 3; ++i)
    REQUIRE_NCCL(ncclCommSplit(members[i], 0, static_cast<int>(i), &split[i], nullptr));
  REQUIRE_NCCL(ncclGroupEnd());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i)
    REQUIRE_NCCL(ncclCommShrink(members[i], &last, 1, &shrunk[i], nullptr, NCCL_SHRINK_DEFAULT));
  REQUIRE_NCCL(ncclGroupEnd());
  ncclUniqueId invitation;
  REQUIRE_NCCL(ncclCommGetUniqueId(shrunk[0], &invitation));
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i)
    REQUIRE_NCCL(ncclCommGrow(shrunk[i], 3, nullptr, -1, &grown[i], nullptr));
  REQUIRE_CUDA(cudaSetDevice(last));
  REQUIRE_NCCL(ncclCommGrow(nullptr, 3, &invitation, last, &grown[2], nullptr));
  REQUIRE_NCCL(ncclGroupEnd());
  for (const std::vector<ncclComm_t>& made : {split, shrunk, grown}) {
    ranks.comms = made;
    REQUIRE_NCCL(ranks.queue(1000));
    REQUIRE_NCCL(ranks.finish());
    for (ncclComm_t comm : made) REQUIRE_NCCL(ncclCommDestroy(comm));
  }
  ranks.comms = members;
  ranks.destroy();
  std::printf("RIGHT\n");
  return 0;
}

TEST(TunerPlugin, IsAskedForCommunicatorsMadeFromOthers) {
  const Folder folder;
  const std::string table = folder.path() + "/table";
  std::ofstream(table) << "allreduce,0,4000,ring,simple,2\n";
  Process process("tuned_children", {},
                  {{"NCCL_TUNER_PLUGIN", plugin("libnccl-tuner-table")},
                   {"TUNER_FILE", table},
                   {"NCCL_DEBUG", "INFO"},
                   {"NCCL_DEBUG_SUBSYS", "ALL"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  const std::string output = process.output();
  EXPECT_EQ(count_of(output, "1 lines from " + table + " for 3 ranks on 1 nodes"), 3u) << output;
  EXPECT_EQ(count_of(output, "1 lines from " + table + " for 2 ranks on 1 nodes"), 1u) << output;
  EXPECT_EQ(count_of(output, "AllReduce of 4000 bytes: tuner plug-in"), 4u) << output;
}

TEST(TunerPlugin, TablesOfAllVersionsServe) {
  for (int version = 2; version <= 6; ++version) {
    SCOPED_TRACE(version);
    const std::string name = "libnccl-tuner-hostile" + std::to_string(version);
    const std::string output =
        run_tuned({{"NCCL_TUNER_PLUGIN", plugin(name)}, {"HOSTILE", "ring"}}, {});
    EXPECT_THAT(output, testing::ContainsRegex("of 4000 bytes: tuner plug-in .* has ring[a-z_]* "
                                               "Simple 2 where"));
    EXPECT_THAT(output, HasSubstr("FINALIZED"));
    if (version >= 5) {
      EXPECT_THAT(output, HasSubstr("TOLD 3 ranks on 1 nodes, 1 domains of 3 to 3, hop 1.90"));
    }
  }
}

TEST(TunerPlugin, OneThatMisbehavesIsOverruledByTheCostModel) {
  for (const Misdeed& misdeed :
       {Misdeed{"init fails", "its init failed with result 3"},
        Misdeed{"init throws", "its init threw an exception"},
        Misdeed{"choose fails", "its getCollInfo failed with result 3"},
        Misdeed{"choose throws", "its getCollInfo threw an exception"},
        Misdeed{"nothing is left", "it leaves no algorithm and protocol"},
        Misdeed{"wants what is not there", "it wants COLLNET_CHAIN with LL, which is not"},
        Misdeed{"channels lie", "it asks for -5 channels"}, Misdeed{"many channels", ""},
        Misdeed{"chunk throws", "its getChunkSize threw an exception"}, Misdeed{"small chunks", ""},
        Misdeed{"constants change", ""}, Misdeed{"finalize throws", "its finalize threw"}}) {
    SCOPED_TRACE(misdeed.what);
    const std::string output = run_tuned(
        {{"NCCL_TUNER_PLUGIN", plugin("libnccl-tuner-hostile6")}, {"HOSTILE", misdeed.what}}, {});
    EXPECT_EQ(count_of(output, "NCCL WARN"), misdeed.said.empty() ? 0u : 1u) << output;
    EXPECT_THAT(output, HasSubstr(misdeed.said));
    if (misdeed.what == "constants change") {
      EXPECT_THAT(output, HasSubstr("has changed constants of NCCL's cost model"));
    }
  }
}

TEST(TunerPlugin, OneThatDoesNotOpenIsNamed) {
  const std::string output = run_tuned({{"NCCL_TUNER_PLUGIN", "none-such"}}, {});
  EXPECT_THAT(output,
              AllOf(HasSubstr("tuner plug-in none-such"), HasSubstr("libnccl-tuner-none-such.so")));
}

// ---- environment plug-ins

TEST(EnvironmentPlugin, TheExampleGivesTheVariablesOfItsFile) {
  const Folder folder;
  const std::string file = folder.path() + "/settings";
  std::ofstream(file) << "# for all\nNCCL_DEBUG=INFO\nNCCL_MAX_CTAS=3\nelsewhere:NCCL_MIN_CTAS=2\n";
  Process process("profiled", {},
                  {{"NCCL_ENV_PLUGIN", plugin("libnccl-env-file")},
                   {"ENV_FILE", file},
                   {"NCCL_MAX_CTAS", "7"},
                   {"NCCL_DEBUG_SUBSYS", "ALL"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(),
              AllOf(HasSubstr("2 settings for NCCL 2.30.7"), HasSubstr("ENV/Plugin: File"),
                    ContainsRegex("NCCL_MAX_CTAS set by environment plug-in File .* to 3\\."),
                    Not(HasSubstr("NCCL_MIN_CTAS set"))));
}

TEST(EnvironmentPlugin, OneThatMisbehavesLeavesTheProcessEnvironment) {
  for (const Misdeed& misdeed : {Misdeed{"init fails", "init failed with result 3"},
                                 Misdeed{"init throws", "init threw an exception"},
                                 Misdeed{"get throws", "threw an exception"}}) {
    SCOPED_TRACE(misdeed.what);
    Process process("profiled", {},
                    {{"NCCL_ENV_PLUGIN", plugin("libnccl-env-hostile")},
                     {"HOSTILE", misdeed.what},
                     {"NCCL_DEBUG", "INFO"},
                     {"NCCL_DEBUG_SUBSYS", "ALL"},
                     {"NCCL_MIN_CTAS", "1"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr(misdeed.said), HasSubstr("the process environment serves instead"),
                      HasSubstr("NCCL_MIN_CTAS set by environment to 1.")));
    EXPECT_EQ(count_of(process.output(), "NCCL WARN"), 1u) << process.output();
  }
}

TEST(EnvironmentPlugin, AFirstVersionServes) {
  Process process("profiled", {},
                  {{"NCCL_ENV_PLUGIN", plugin("libnccl-env-hostile")},
                   {"NCCL_DEBUG", "INFO"},
                   {"NCCL_DEBUG_SUBSYS", "ALL"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(),
              ContainsRegex("NCCL_MIN_CTAS set by environment plug-in .* to 2\\."));
}

// NCCL reads the tables of all kinds after init.
TEST(Plugins, MayCompleteTheirTablesInInit) {
  const std::string output = run_tuned({{"NCCL_TUNER_PLUGIN", plugin("libnccl-tuner-late")},
                                        {"NCCL_PROFILER_PLUGIN", plugin("libnccl-profiler-late")},
                                        {"NCCL_ENV_PLUGIN", plugin("libnccl-env-late")},
                                        {"HOSTILE", "ring"}},
                                       {});
  EXPECT_THAT(output, testing::ContainsRegex("of 4000 bytes: tuner plug-in .* has ring"));
  EXPECT_THAT(output, HasSubstr("EVENT 2 below 512: AllReduce"));
  EXPECT_THAT(output, HasSubstr("ENV/Plugin: hostile"));
}

TEST(EnvironmentPlugin, OneThatDoesNotOpenIsNamed) {
  Process process("profiled", {}, {{"NCCL_ENV_PLUGIN", "none-such"}, {"NCCL_DEBUG", "WARN"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), AllOf(HasSubstr("environment plug-in none-such"),
                                      HasSubstr("libnccl-env-none-such.so")));
}

}  // namespace
}  // namespace niccolite::test
