// What the kinds of parameters take, that every variable of the library refuses what its kind does
// not, and that variables of NCCL's that do nothing here are told of.

#include "base/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "base/log.h"

namespace niccolite::parameters {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Files are read once per process, before the first use of any variable.
const bool kPrepared = [] {
  const std::string path = "/tmp/niccolite-parameters-" + std::to_string(getpid()) + ".conf";
  std::ofstream(path) << "NCCL_MIN_CTAS=3\nNCCL_MAX_CTAS=5\nNCCL_IB_ECE_ENABLE=1\n";
  setenv("NCCL_CONF_FILE", path.c_str(), 1);
  setenv("NCCL_MAX_CTAS", "4", 1);
  load_files();
  unlink(path.c_str());
  return true;
}();

const Declaration kNumber{"NUMBER", Kind::Integer, 7, -1, 1 << 20, "", ""};
const Declaration kBytes{"BYTES", Kind::Bytes, 7, 1, INT64_C(1) << 32, "", ""};
const Declaration kFlag{"FLAG", Kind::Flag, INT64_MIN, 0, 1, "", ""};
const Declaration kChoice{"CHOICE", Kind::Choice, INT64_MIN, 0, 0, "AF_INET|AF_INET6", ""};

struct Taken {
  const Declaration& declaration;
  const char* text;
  int64_t number;
};

TEST(Parameters, TakeNumbersOfTheirKind) {
  const Taken cases[] = {
      {kNumber, "12", 12},
      {kNumber, " 0x10 ", 16},
      {kNumber, "010", 8},
      {kNumber, "-1", -1},
      {kNumber, "", 7},
      {kBytes, "4M", 4 << 20},
      {kBytes, "4m", 4 << 20},
      {kBytes, "64KiB", 64 << 10},
      {kBytes, "64 KB", 64 << 10},
      {kBytes, "1G", 1 << 30},
      {kBytes, "100B", 100},
      {kBytes, "4194304", 4194304},
      {kFlag, "1", 1},
      {kFlag, "yes", 1},
      {kFlag, "True", 1},
      {kFlag, "on", 1},
      {kFlag, "0", 0},
      {kFlag, "NO", 0},
      {kFlag, "false", 0},
      {kFlag, "", INT64_MIN},
  };
  for (const Taken& each : cases) {
    const Reading reading = read(each.declaration, each.text);
    EXPECT_THAT(reading.refusal, IsEmpty()) << each.declaration.name << "=" << each.text;
    EXPECT_EQ(reading.number, each.number) << each.declaration.name << "=" << each.text;
  }
}

TEST(Parameters, RefuseWhatIsHalfANumberOrOutOfRange) {
  const Taken cases[] = {
      {kNumber, "1e3", 7},
      {kNumber, "4M", 7},
      {kNumber, "12 13", 7},
      {kNumber, "99999999999999999999", 7},
      {kNumber, "-2", 7},
      {kBytes, "4X", 7},
      {kBytes, "4MM", 7},
      {kBytes, "8G", 7},
      {kBytes, "9999999999999999G", 7},
      {kBytes, "M", 7},
      {kFlag, "2", INT64_MIN},
      {kFlag, "maybe", INT64_MIN},
  };
  for (const Taken& each : cases) {
    const Reading reading = read(each.declaration, each.text);
    EXPECT_THAT(reading.refusal, Not(IsEmpty())) << each.declaration.name << "=" << each.text;
    EXPECT_EQ(reading.number, each.number) << each.declaration.name << "=" << each.text;
  }
}

TEST(Parameters, TakeNamesInAnyCase) {
  EXPECT_EQ(read(kChoice, "af_inet6").text, "AF_INET6");
  EXPECT_EQ(read(kChoice, "AF_INET").text, "AF_INET");
  for (const char* text : {"AF_INET7", "AF_INE", "INET", "|", "AF_INET|AF_INET6"}) {
    EXPECT_THAT(read(kChoice, text).refusal, HasSubstr("AF_INET|AF_INET6")) << text;
    EXPECT_THAT(read(kChoice, text).text, IsEmpty()) << text;
  }
}

TEST(Parameters, KnowWhereTheirValuesComeFrom) {
  ASSERT_TRUE(kPrepared);
  EXPECT_EQ(source_of("NCCL_MIN_CTAS"), Source::File);
  EXPECT_EQ(min_ctas(), 3);
  EXPECT_EQ(source_of("NCCL_MAX_CTAS"), Source::Environment);
  EXPECT_EQ(max_ctas(), 4);
  EXPECT_EQ(source_of("NCCL_BUFFSIZE"), Source::Default);
}

TEST(Parameters, NoneTakesGarbageForAValue) {
  ASSERT_FALSE(declarations().empty());
  std::set<std::string> names;
  for (const Declaration& each : declarations()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name << " is declared twice";
    EXPECT_STRNE(each.meaning, "") << each.name;
    EXPECT_EQ(read(each, "").number, each.value) << each.name;
    if (each.kind == Kind::Text) continue;
    for (const char* garbage : {"foo", "1e3", "4Mfoo", "--1", "0x", "1 2", "yesno", "AF_INET7",
                                "99999999999999999999", "-99999999999999999999", "|", "%s%n"}) {
      const Reading reading = read(each, garbage);
      EXPECT_THAT(reading.refusal, Not(IsEmpty())) << each.name << "=" << garbage;
      EXPECT_EQ(reading.number, each.value) << each.name << "=" << garbage;
      EXPECT_THAT(reading.text, IsEmpty()) << each.name << "=" << garbage;
    }
  }
}

// What is logged at a level of NCCL_DEBUG.
std::string told_of_those_without_effect(const char* level) {
  setenv("NCCL_DEBUG", level, 1);
  setenv("NCCL_DEBUG_SUBSYS", "ENV", 1);
  unsetenv("NCCL_DEBUG_FILE");
  log::reset();
  testing::internal::CaptureStdout();
  tell_of_those_without_effect();
  const std::string told = testing::internal::GetCapturedStdout();
  unsetenv("NCCL_DEBUG");
  unsetenv("NCCL_DEBUG_SUBSYS");
  log::reset();
  return told;
}

TEST(Parameters, TellOfEachThatIsSetAndHasNoEffect) {
  ASSERT_TRUE(kPrepared);
  ASSERT_FALSE(without_effect().empty());
  EXPECT_THAT(told_of_those_without_effect("INFO"),
              HasSubstr("NCCL_IB_ECE_ENABLE set by " + std::string(getenv("NCCL_CONF_FILE")) +
                        " to 1 has no effect: "));
  for (const WithoutEffect& each : without_effect()) unsetenv(each.name);
  EXPECT_THAT(told_of_those_without_effect("INFO"), IsEmpty());
  for (const WithoutEffect& each : without_effect()) {
    setenv(each.name, "", 1);
    EXPECT_THAT(told_of_those_without_effect("INFO"), IsEmpty()) << each.name;
    setenv(each.name, "some value", 1);
    EXPECT_THAT(told_of_those_without_effect("WARN"), IsEmpty()) << each.name;
    const std::string told = told_of_those_without_effect("INFO");
    unsetenv(each.name);
    EXPECT_THAT(told, AllOf(HasSubstr(" NCCL INFO " + std::string(each.name) + " set by " +
                                      origin_of(each.name) + " to some value has no effect: "),
                            EndsWith(std::string(each.reason) + "\n")));
    EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  }
}

TEST(Parameters, NoneThatIsReadHasNoEffect) {
  std::set<std::string> names{"NCCL_ALGO",
                              "NCCL_PROTO",
                              "NCCL_COMM_ID",
                              "NCCL_CONF_FILE",
                              "NCCL_DEBUG",
                              "NCCL_DEBUG_SUBSYS",
                              "NCCL_DEBUG_FILE",
                              "NCCL_DEBUG_TIMESTAMP_LEVELS",
                              "NCCL_DEBUG_TIMESTAMP_FORMAT"};
  for (const Declaration& each : declarations()) names.insert(each.name);
  for (const WithoutEffect& each : without_effect()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name << " is declared twice";
    EXPECT_STRNE(each.reason, "") << each.name;
  }
}

// All that NCCL 2.31 and 2.32 have added, and a sample of older ones that nobody documents.
TEST(Parameters, KnowTheVariablesOfNewerReleases) {
  std::set<std::string> names;
  for (const Declaration& each : declarations()) names.insert(each.name);
  for (const WithoutEffect& each : without_effect()) names.insert(each.name);
  for (const char* name : {"CE_COLL_AG_MULTICAST_THRESHOLD",
                           "CFT_ENABLE",
                           "DEV_API_JIT",
                           "DIAGNOSTICS_ECC_THRESHOLD",
                           "ENQUEUE_REARCH_ENABLE",
                           "GDRCOPY_USE_INTERNAL_DMABUF",
                           "GIN_IB_OOO_OPT",
                           "GIN_PROXY_NTHREADS",
                           "GIN_PROXY_POLL_BATCH",
                           "HIER_CE_COLL_NUM_CTX",
                           "IB_EVENT_BASED_LB",
                           "IB_EVENT_BASED_LB_REMOTE",
                           "IB_PKEY_VALUE",
                           "IB_WQE_LATENCY_REPORT",
                           "IB_WQE_LATENCY_THRESHOLD_NS",
                           "NUM_RMA_INT_CTX",
                           "P2P_PER_CHANNEL_REG_NET_BW",
                           "RMA_EAGER_INIT",
                           "RMA_MULTI_CTX_THRESHOLD",
                           "RUN_DIAGNOSTICS",
                           "RUN_RAS_DIAGNOSTICS",
                           "SYM_CE_THRESHOLD",
                           "TOPO_SCATTER_START_NET",
                           "CE_CHUNK_SIZE",
                           "CE_INTRA_GPU_MEMCPY_ENABLE",
                           "DEBUG_LEVELS",
                           "DIAGNOSTICS_IB_BW_TIMEOUT",
                           "GDAKI_FORCE_MCST",
                           "GIN_GDAKI_LAG_AWARE_DISABLE",
                           "HIER_CE_COLL_AG_RAIL_RING_ENABLE",
                           "IB_RAIL_POLICY",
                           "IB_SORT_MERGE_NICS",
                           "IB_VR_RAILS_PER_SOCKET",
                           "IB_VR_SOCKET_COUNT",
                           "NVLS_UB_SIZE",
                           "PROGRESS_COUNTERS",
                           "PROGRESS_COUNTER_MONITOR_POLL_MS",
                           "PROGRESS_COUNTER_MONITOR_STALE_MS",
                           "PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC",
                           "RMA_IB_WR_BATCHSIZE",
                           "SYM_CTAS",
                           "NET_OVERHEAD",
                           "WIN_STRIDE",
                           "P2P_EPOCH_ENABLE"})
    EXPECT_TRUE(names.contains(std::string("NCCL_") + name)) << name;
}

}  // namespace
}  // namespace niccolite::parameters
