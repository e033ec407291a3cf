// What the environment changes: log lines in NCCL's format, configuration files, selections,
// pointer checks. Each in a process of its own, since variables are read once per process.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// count: one all-reduce over two ranks of this process.
ROLE(pair) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  const bool right = ranks.all_reduce(std::stoul(arguments[0]));
  ranks.destroy();
  return right ? 0 : 1;
}

// A communicator of one rank, made with the config of NCCL 2.32.
ROLE(newer_config) {
  struct {
    ncclConfig_t head = NCCL_CONFIG_INITIALIZER;
    int launch_order_implicit = NCCL_CONFIG_UNDEF_INT;
    int num_rma_sig = 4;
    int others[4] = {NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 0};
  } config;
  static_assert(sizeof config == 120);
  config.head.size = sizeof config;
  config.head.version = NCCL_VERSION(2, 32, 3);
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  REQUIRE_NCCL(ncclCommInitRankConfig(&comm, 1, id, 0, &config.head));
  REQUIRE_NCCL(ncclCommDestroy(comm));
  return arguments.empty() ? 0 : 1;
}

std::string output_of(const Process::Environment& environment, int status = 0,
                      const char* count = "1000") {
  Process process("pair", {count}, environment);
  EXPECT_EQ(process.wait(), status) << process.output();
  return process.output();
}

TEST(Log, SaysNothingUnlessAsked) { EXPECT_THAT(output_of({}), IsEmpty()); }

TEST(Log, HasNcclsLines) {
  const std::string output = output_of({{"NCCL_DEBUG", "INFO"}});
  EXPECT_THAT(output, ContainsRegex("[a-zA-Z0-9_-]+:[0-9]+:[0-9]+ \\[[0-9]+\\] NCCL INFO "));
  EXPECT_THAT(output, ContainsRegex("NCCL version 2\\.30\\.7\\+cuda[0-9]+\\.[0-9]"));
  EXPECT_THAT(
      output,
      ContainsRegex(
          "\\[Rank 1\\] ncclCommInitRank comm 0x[0-9a-f]+ rank 1 nranks 2 cudaDev 1 nvmlDev 1 "
          "busId [0-9a-f:.]+ commId 0x[0-9a-f]+ - Init START"));
  EXPECT_THAT(output, ContainsRegex(
                          "ncclCommInitRank comm 0x[0-9a-f]+ rank 0 nranks 2 .* - Init COMPLETE"));
  EXPECT_THAT(output, HasSubstr("Bootstrap: Using "));
  // Whose library it is, once for each of the two processes.
  EXPECT_THAT(output, ContainsRegex("NCCL INFO Niccolite [0-9.]+, NCCL 2\\.30\\.7, loaded from "
                                    "/.*libnccl\\.so\\.2[.0-9]*, on "
                                    "virtual GPUs"));
}

ROLE(misuse) {
  return ncclCommInitRank(nullptr, 2, ncclUniqueId{}, 0) == ncclInvalidArgument ? 0 : 1;
}

TEST(Log, NamesTheFunctionOfAnErrorOnce) {
  Process process("misuse", {}, {{"NCCL_DEBUG", "WARN"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(),
              ContainsRegex("\\[0\\] [^ ]+ NCCL WARN ncclCommInitRank : comm argument is NULL"));
}

// A communicator with what programs' own tests set, and look for in the log.
ROLE(configured) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 4;
  config.maxCTAs = 5;
  config.cgaClusterSize = 2;
  config.splitShare = 1;
  config.netName = arguments[0].c_str();
  config.commName = "trainers";
  config.trafficClass = 7;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  if (result != ncclSuccess) return static_cast<int>(result);
  REQUIRE_NCCL(ncclCommDestroy(comm));
  return 0;
}

TEST(Log, HasTheWordsForSettingsThatProgramsLookFor) {
  for (const char* network : {"Socket", "socket", "SOCKET"}) {
    Process process("configured", {network}, {{"NCCL_DEBUG", "INFO"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    for (const char* words :
         {"Comm config Min CTAs set to 4", "Comm config Max CTAs set to 5",
          "Comm config CGA cluster size set to 2", "Comm config Split share set to 1",
          "Comm config Comm name set to trainers", "Using network Socket"})
      EXPECT_THAT(process.output(), HasSubstr(words));
  }
}

TEST(Configuration, HasATrafficClassForPlugins) {
  Process process("configured", {"Unix"},
                  {{"NCCL_DEBUG", "INFO"},
                   {"NCCL_NET_PLUGIN", std::string(NET_PLUGINS) + "/libnccl-net-NOTHING.so"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), AllOf(HasSubstr("Comm config Traffic class set to 7"),
                                      HasSubstr("Unix: a communicator of traffic class 7")));
}

TEST(Log, NamesTheNetworkThatIsNotThere) {
  Process process("configured", {"InfiniBand"}, {});
  EXPECT_EQ(process.wait(), static_cast<int>(ncclInvalidUsage));
  EXPECT_THAT(process.output(),
              AllOf(HasSubstr("netName"), HasSubstr("'InfiniBand'"), HasSubstr("'Socket'")));
}

TEST(Log, OfVersionIsOneRawLine) {
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "VERSION"}}),
              testing::MatchesRegex("NCCL version [0-9.]+\\+cuda[0-9.]+\n"));
}

TEST(Log, IsFilteredBySubsystem) {
  const std::string coll = output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "COLL"}});
  EXPECT_THAT(coll, ContainsRegex("AllReduce: sendbuff 0x[0-9a-f]+ recvbuff 0x[0-9a-f]+ count 1000 "
                                  "datatype 7 op 0 root 0"));
  EXPECT_THAT(coll, Not(HasSubstr("Init START")));
  EXPECT_THAT(
      output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "TUNING"}, {"NCCL_ALGO", "ring"}}),
      ContainsRegex("AllReduce: 4000 Bytes -> Algo RING proto [A-Z]+ channel\\{Lo\\.\\.Hi\\}="));
}

TEST(Log, GoesToTheFileNamedByHostAndProcess) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("niccolite-log-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string pattern = folder / "log.%h.%p.%%";
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", pattern}}), IsEmpty());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++files;
    EXPECT_THAT(entry.path().filename().string(),
                ContainsRegex("log\\.[a-zA-Z0-9_-]+\\.[0-9]+\\.%"));
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    EXPECT_THAT(text, HasSubstr("Init COMPLETE"));
  }
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(folder);
}

TEST(Log, ALevelThatIsNoneHidesNoError) {
  for (const char* level : {"1", "FOO", "INFOO"}) {
    const std::string output =
        output_of({{"NCCL_DEBUG", level}, {"NCCL_ALGO", "rong"}}, 10 + ncclInvalidUsage);
    EXPECT_THAT(output, HasSubstr("NCCL_DEBUG=" + std::string(level) + " is none of"));
    EXPECT_THAT(output, ContainsRegex("NCCL WARN [^\n]*rong"));
  }
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "INIT,FOO"}}),
              HasSubstr("NCCL_DEBUG_SUBSYS=INIT,FOO has a name that is no subsystem"));
}

TEST(Log, TakesTheLevelOfAttention) {
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "attn"}}), Not(HasSubstr("WARN")));
}

TEST(Log, AFileThatCannotBeOpenedIsNamed) {
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", "/nowhere/log"}}),
              HasSubstr("NCCL_DEBUG_FILE=/nowhere/log cannot be opened"));
}

// The library and the driver of virtual GPUs, which has a log of its own, write to one file.
TEST(Log, LibrariesOfAProcessShareAFileThatStartsEmpty) {
  const std::string path =
      testing::TempDir() + "niccolite-log-" + std::to_string(getpid()) + ".txt";
  std::ofstream(path) << "of an earlier run\n";
  EXPECT_THAT(output_of({{"NCCL_DEBUG", "INFO"},
                         {"NCCL_DEBUG_SUBSYS", "ALL"},
                         {"NICCOLITE_DEVICES", "virtual:2"},
                         {"NCCL_DEBUG_FILE", path}}),
              IsEmpty());
  std::ifstream file(path);
  int of_devices = 0;
  for (std::string line; std::getline(file, line);) {
    EXPECT_THAT(line, ContainsRegex("^[a-zA-Z0-9_-]+:[0-9]+:[0-9]+ \\[[0-9]+\\] NCCL INFO "));
    of_devices += line.find("NICCOLITE_DEVICES set by environment to virtual:2") != line.npos;
  }
  EXPECT_EQ(of_devices, 2);  // each library has read it, and said so
  std::remove(path.c_str());
}

TEST(Environment, ValuesThatAreNotTakenAreNamed) {
  const std::string output = output_of({{"NCCL_BUFFSIZE", "4X"},
                                        {"NICCOLITE_INIT_TIMEOUT", "1e3"},
                                        {"NCCL_COMM_BLOCKING", "perhaps"},
                                        {"NCCL_SOCKET_FAMILY", "AF_INET7"},
                                        {"NCCL_CHECK_MODE", "foo"},
                                        {"NICCOLITE_CHUNK_PARTS", "3"},
                                        {"NCCL_CTA_POLICY", "FASTEST"}});
  for (const char* text :
       {"NCCL_BUFFSIZE=4X is no number of bytes, with or without K, M or G: as if unset",
        "NICCOLITE_INIT_TIMEOUT=1e3 is no whole number: 120 is taken",
        "NCCL_COMM_BLOCKING=perhaps is none of", "NCCL_SOCKET_FAMILY=AF_INET7 is none of",
        "NCCL_CHECK_MODE=foo is none of",
        "NICCOLITE_CHUNK_PARTS=3 is not a power of two: 2 is taken",
        "NCCL_CTA_POLICY=FASTEST: 'fastest' is none of"}) {
    const size_t first = output.find(text);
    EXPECT_NE(first, std::string::npos) << text << " is not in\n" << output;
    EXPECT_EQ(output.rfind(text), first) << text << " is said twice";
  }
}

TEST(Environment, WhatHasNoEffectIsSaidOnce) {
  const Process::Environment useless{{"NCCL_MNNVL_ENABLE", "1"}, {"NCCL_IB_ECE_ENABLE", "1"}};
  EXPECT_THAT(output_of(useless), IsEmpty());
  Process::Environment with_log = useless;
  with_log.insert({"NCCL_DEBUG", "INFO"});
  const std::string output = output_of(with_log);
  for (const char* text :
       {"NCCL_MNNVL_ENABLE set by environment to 1 has no effect: NVLink between",
        "NCCL_IB_ECE_ENABLE set by environment to 1 has no effect: as 0"}) {
    const size_t first = output.find(text);
    EXPECT_NE(first, std::string::npos) << text << " is not in\n" << output;
    EXPECT_EQ(output.rfind(text), first) << text << " is said twice";
  }
}

TEST(Environment, SignalsBeyondTheFirstAreToldOf) {
  Process process("newer_config", {}, {{"NCCL_DEBUG", "INFO"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("Comm config numRmaSig 4 has no effect"));
}

TEST(Environment, ComesFromTheConfigurationFileToo) {
  const std::string path =
      testing::TempDir() + "niccolite-test-" + std::to_string(getpid()) + ".conf";
  std::ofstream(path)
      << "# a comment\nNCCL_DEBUG=INFO\nNCCL_PROTO=simple\nNCCL_DEBUG_SUBSYS=ENV,TUNING\n";
  const std::string output = output_of({{"NCCL_CONF_FILE", path}});
  EXPECT_THAT(output, HasSubstr("proto SIMPLE"));
  // What is set already stays.
  EXPECT_THAT(output_of({{"NCCL_CONF_FILE", path}, {"NCCL_PROTO", "ll"}}), HasSubstr("proto LL"));
  std::remove(path.c_str());
}

TEST(Environment, AValueNamesTheFileThatItComesFrom) {
  const std::string path =
      testing::TempDir() + "niccolite-origin-" + std::to_string(getpid()) + ".conf";
  std::ofstream(path)
      << "NCCL_DEBUG=INFO\nNCCL_MAX_CTAS=5\nNCCL_PROTO=simple\nNCCL_IB_ECE_ENABLE=1\n"
         "NICCOLITE_DEVICES=virtual:2\nNCCL_CHECK_POINTERS=perhaps\n";
  const std::string output = output_of({{"NCCL_CONF_FILE", path}, {"NCCL_ALGO", "ring"}});
  EXPECT_THAT(output, AllOf(HasSubstr("NCCL_MAX_CTAS set by " + path + " to 5."),
                            HasSubstr("NCCL_PROTO set by " + path + " to simple"),
                            HasSubstr("NCCL_ALGO set by environment to ring"),
                            HasSubstr("NCCL_IB_ECE_ENABLE set by " + path + " to 1 has no effect"),
                            HasSubstr("NCCL_CHECK_POINTERS=perhaps (of " + path + ") is none of")));
  // The library of virtual GPUs has read the file, too.
  EXPECT_THAT(output, Not(HasSubstr("NICCOLITE_DEVICES set by environment")));
  std::remove(path.c_str());
}

TEST(Environment, AConfigurationFileThatIsMissingOrHasLinesWithoutMeaningIsNamed) {
  EXPECT_THAT(output_of({{"NCCL_CONF_FILE", "/nowhere/nccl.conf"}}),
              HasSubstr("NCCL_CONF_FILE=/nowhere/nccl.conf cannot be read (No such file"));
  const std::string path =
      testing::TempDir() + "niccolite-lines-" + std::to_string(getpid()) + ".conf";
  std::ofstream(path) << "# a comment\n\nNCCL_MAX_CTAS=5\nexport NCCL_MIN_CTAS=2\nno assignment\n";
  const std::string output = output_of({{"NCCL_CONF_FILE", path}});
  EXPECT_THAT(output,
              HasSubstr(path + ": line 4, \"export NCCL_MIN_CTAS=2\", as 1 more, has no meaning"));
  EXPECT_EQ(output.find("has no meaning"), output.rfind("has no meaning"));
  std::remove(path.c_str());
}

TEST(Environment, AnUnknownAlgorithmFailsInitNamingIt) {
  EXPECT_THAT(output_of({{"NCCL_ALGO", "rong"}}, 10 + ncclInvalidUsage),
              AllOf(HasSubstr("NCCL_ALGO"), HasSubstr("rong")));
}

TEST(Environment, ASelectionThatLeavesNothingFailsTheCall) {
  EXPECT_THAT(output_of({{"NCCL_ALGO", "collnetchain"}}, 10 + ncclInvalidUsage),
              AllOf(HasSubstr("no algorithm/protocol available"),
                    HasSubstr("NCCL_ALGO of rank 0 leaves none"),
                    HasSubstr("CollNet has nothing for it"), Not(HasSubstr("NCCL_PROTO"))));
}

// LL128 is for links that keep lines of 128 bytes whole.
TEST(Environment, NoLL128WhereALinkMayTearLines) {
  const Process::Environment pcie{{"NICCOLITE_VIRTUAL_PCIE", "3-4,1-0"}};
  const auto with = [&](Process::Environment more) {
    more.insert(pcie.begin(), pcie.end());
    return more;
  };
  // Asked for and nothing else: refused at init, with the pair.
  const std::string refused = output_of(with({{"NCCL_PROTO", "LL128"}}), 10 + ncclInvalidUsage);
  EXPECT_THAT(refused, ContainsRegex("link between rank 0 \\(GPU [0-9a-f:.]+\\) and rank 1 "
                                     "\\(GPU [0-9a-f:.]+\\) is not known to be NVLink"));
  EXPECT_THAT(refused, HasSubstr("NCCL_PROTO of rank 0"));
  // One of several: another is taken.
  const auto protocol_of = [](const char* choice, Process::Environment more) {
    more.merge(Process::Environment{
        {"NCCL_PROTO", choice}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "TUNING"}});
    return output_of(more, 0, "2000");
  };
  EXPECT_THAT(protocol_of("LL128", {}), HasSubstr("proto LL128"));
  EXPECT_THAT(protocol_of("LL128,Simple", pcie), HasSubstr("proto SIMPLE"));
  // Between other GPUs it is nobody's affair.
  EXPECT_THAT(output_of({{"NICCOLITE_VIRTUAL_PCIE", "1-2"}, {"NCCL_PROTO", "LL128"}}), IsEmpty());
}

// id rank
ROLE(one_of_three) {
  LocalRanks ranks(to_id(arguments[0]), 3, std::stoi(arguments[1]), 1);
  const bool right = ranks.all_reduce(1000);
  ranks.destroy();
  return right ? 0 : 1;
}

// Rank 0's hold: whoever set others is told so, once.
TEST(Environment, VariablesThatDifferAreSaidOnce) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> ranks;
  ranks.emplace_back("one_of_three", Arguments{to_text(id), "0"},
                     Process::Environment{{"NCCL_DEBUG", "WARN"}});
  ranks.emplace_back("one_of_three", Arguments{to_text(id), "1"},
                     Process::Environment{{"NCCL_DEBUG", "WARN"}, {"NCCL_ALGO", "ring"}});
  ranks.emplace_back("one_of_three", Arguments{to_text(id), "2"},
                     Process::Environment{{"NCCL_DEBUG", "WARN"}});
  for (Process& rank : ranks) EXPECT_EQ(rank.wait(), 0) << rank.output();
  EXPECT_THAT(ranks[0].output(),
              HasSubstr("NCCL_ALGO is not set on ranks 0 and 2, \"ring\" on rank "
                        "1: rank 0's holds for all"));
  for (const size_t other : {1u, 2u})
    EXPECT_THAT(ranks[other].output(), Not(HasSubstr("holds for all")));
}

TEST(Environment, BufferAndChannelSettingsKeepResultsRight) {
  for (const char* bytes : {"1", "4096", "1000000"})
    for (const char* channels : {"1", "5"})
      output_of({{"NCCL_BUFFSIZE", bytes},
                 {"NCCL_MIN_NCHANNELS", channels},
                 {"NCCL_MAX_CTAS", channels},
                 {"NCCL_NTHREADS", "100"}},
                0, "100003");
}

ROLE(wrong_device) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  void* foreign = nullptr;
  REQUIRE_CUDA(cudaSetDevice(1));
  REQUIRE_CUDA(cudaMalloc(&foreign, 64));
  const ncclResult_t other =
      ncclAllReduce(foreign, foreign, 1, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
  std::printf("OTHER %d %s\n", other, ncclGetLastError(nullptr));
  int local = 0;
  const ncclResult_t host =
      ncclAllReduce(&local, &local, 1, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
  std::printf("HOST %d %s\n", host, ncclGetLastError(nullptr));
  const ncclResult_t null =
      ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, ranks.comms[0], ranks.streams[0]);
  std::printf("NULL %d %s\n", null, ncclGetLastError(nullptr));
  REQUIRE_CUDA(cudaFree(foreign));
  ranks.destroy();
  return 0;
}

// id, rank: one rank of two, each on the first GPU that its process sees.
ROLE(first_visible) {
  const int rank = std::stoi(arguments[1]);
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  std::printf("COUNT %d\n", count);
  if (counted == cudaErrorNoDevice) return 7;
  cudaDeviceProp properties;
  REQUIRE_CUDA(cudaGetDeviceProperties(&properties, 0));
  char bus[32] = "";
  REQUIRE_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
  std::printf("FIRST %02x %s\n", static_cast<unsigned>(properties.pciBusID), bus);
  ncclComm_t comm = nullptr;
  REQUIRE_NCCL(ncclCommInitRank(&comm, 2, to_id(arguments[0]), rank));
  float* value = nullptr;
  REQUIRE_CUDA(cudaMalloc(&value, sizeof *value));
  const float sent = static_cast<float>(1 << rank);
  REQUIRE_CUDA(cudaMemcpy(value, &sent, sizeof sent, cudaMemcpyHostToDevice));
  REQUIRE_NCCL(ncclAllReduce(value, value, 1, ncclFloat, ncclSum, comm, nullptr));
  float sum = 0;
  REQUIRE_CUDA(cudaMemcpy(&sum, value, sizeof sum, cudaMemcpyDeviceToHost));
  REQUIRE_NCCL(ncclCommDestroy(comm));
  return sum == 3 ? 0 : 1;
}

TEST(Environment, EachProcessMaySeeAnotherGpu) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> ranks;
  for (const auto& [rank, visible] : {std::pair("0", "1"), std::pair("1", "3,0")})
    ranks.emplace_back("first_visible", Arguments{to_text(id), rank},
                       Process::Environment{{"NICCOLITE_DEVICES", "virtual:4"},
                                            {"CUDA_VISIBLE_DEVICES", visible}});
  for (Process& rank : ranks) EXPECT_EQ(rank.wait(), 0) << rank.output();
  EXPECT_THAT(ranks[0].output(), AllOf(HasSubstr("COUNT 1\n"), HasSubstr("FIRST 01 f000:01:00.0")));
  EXPECT_THAT(ranks[1].output(), AllOf(HasSubstr("COUNT 2\n"), HasSubstr("FIRST 03 f000:03:00.0")));
}

// Where all ranks are on one machine no network is needed; elsewhere these names end init.
TEST(Environment, NetworksThatThereAreNotAreToldOnOneMachineToo) {
  for (const auto& [name, hint] :
       {std::pair("IB", "InfiniBand"), std::pair("Sokcet", "One machine needs none")}) {
    const std::string output = output_of({{"NCCL_NET", name}});
    const std::string told = std::string("NCCL_NET='") + name + "'";
    EXPECT_THAT(output, AllOf(HasSubstr(told), HasSubstr(hint)));
    EXPECT_EQ(output.find(told), output.rfind(told)) << "once: " << output;
  }
  EXPECT_THAT(output_of({{"NCCL_NET", "socket"}}), IsEmpty());
}

TEST(Environment, IsToldThatItHidesAllGpus) {
  Process process("first_visible", {"", "0"},
                  {{"NICCOLITE_DEVICES", "virtual:4"}, {"CUDA_VISIBLE_DEVICES", "7"}});
  EXPECT_EQ(process.wait(), 7) << process.output();
  EXPECT_THAT(process.output(),
              AllOf(HasSubstr("COUNT 0\n"), HasSubstr("CUDA_VISIBLE_DEVICES is \"7\"")));
}

TEST(Environment, PointerChecksNameBufferAndDevices) {
  for (const auto& variable :
       {std::pair("NCCL_CHECK_POINTERS", "yes"), std::pair("NCCL_CHECK_MODE", "debug_local"),
        std::pair("NCCL_CHECK_MODE", "default")}) {
    Process process("wrong_device", {}, {{variable.first, variable.second}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(
        process.output(),
        ContainsRegex("OTHER 4 .*sendbuff .* is allocated on device 1, .* rank 0 is on device 0"));
    EXPECT_THAT(process.output(), ContainsRegex("HOST 4 .*is not a valid pointer"));
    EXPECT_THAT(process.output(), ContainsRegex("NULL 4 .*sendbuff argument is NULL"));
  }
}

}  // namespace
}  // namespace niccolite::test
