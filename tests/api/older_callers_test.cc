// Programs compiled with older headers hand in shorter configurations, whose last bytes may be
// padding; newer ones hand in longer ones. Each is played here by the struct of its time, followed
// by bytes that must not be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "older_configs.h"

namespace {

struct Caller {
  const char* name;
  size_t size;       // of its struct
  unsigned version;  // of its header
  size_t padding;    // bytes at the end that its initializer did not write
};
void PrintTo(const Caller& caller, std::ostream* out) { *out << caller.name; }

constexpr Caller kCallers[] = {
    {"2.14.3", sizeof(Config_2_14), 21403, 4},
    {"2.16.5", sizeof(Config_2_14), 21605, 4},
    {"2.17.1", sizeof(Config_2_17), 21701, 0},
    {"2.18.1", sizeof(Config_2_18), 21801, 4},
    {"2.25.1", sizeof(Config_2_18), 22501, 4},
    {"2.26.2", sizeof(Config_2_26), 22602, 0},
    {"2.27.3", sizeof(Config_2_27), 22703, 0},
    {"2.28.9", sizeof(Config_2_28), 22809, 0},
    {"2.29.7", sizeof(Config_2_29), 22907, 0},
    {"2.30.4", sizeof(Config_2_30_3), 23004, 4},
    {"2.30.7", sizeof(ncclConfig_t), 23007, 0},
    {"2.31.2", sizeof(ncclConfig_t) + 16, 23102, 0},
    {"2.32.3", sizeof(ncclConfig_t) + 24, 23203, 4},
};

// A configuration as the caller's initializer leaves it: today's values cut to its size, numbers
// that newer headers added and that are not set, then garbage.
class CallerConfig {
 public:
  explicit CallerConfig(const Caller& caller) : bytes_(kRoom, kGarbage) {
    ncclConfig_t today = NCCL_CONFIG_INITIALIZER;
    today.size = caller.size;
    today.version = caller.version;
    const size_t written = caller.size - caller.padding;
    std::memcpy(bytes_.data(), &today, std::min(written, sizeof(today)));
    constexpr int kUndefined = NCCL_CONFIG_UNDEF_INT;
    for (size_t at = sizeof(today); at < written; at += sizeof kUndefined)
      std::memcpy(bytes_.data() + at, &kUndefined, sizeof kUndefined);
  }
  ncclConfig_t* get() { return reinterpret_cast<ncclConfig_t*>(bytes_.data()); }

 private:
  static constexpr size_t kRoom = 256;
  static constexpr char kGarbage = '\x5a';
  std::vector<char> bytes_;  // from operator new: aligned for any struct
};

ncclResult_t init_one_rank(ncclConfig_t* config, ncclComm_t* comm) {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  return result == ncclSuccess ? ncclCommInitRankConfig(comm, 1, id, 0, config) : result;
}

class OlderCaller : public testing::TestWithParam<Caller> {};

TEST_P(OlderCaller, JoinsWithItsInitializerUntouched) {
  CallerConfig config(GetParam());
  ncclComm_t comm = nullptr;
  ASSERT_EQ(init_one_rank(config.get(), &comm), ncclSuccess) << ncclGetLastError(nullptr);
  int count = 0;
  EXPECT_EQ(ncclCommCount(comm, &count), ncclSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST_P(OlderCaller, MayAskForNonblocking) {
  CallerConfig config(GetParam());
  config.get()->blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun = init_one_rank(config.get(), &comm);
  ASSERT_TRUE(begun == ncclInProgress || begun == ncclSuccess) << ncclGetLastError(nullptr);
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

INSTANTIATE_TEST_SUITE_P(Headers, OlderCaller, testing::ValuesIn(kCallers), [](const auto& tested) {
  std::string name = tested.param.name;
  for (char& c : name)
    if (c == '.') c = '_';
  return "v" + name;
});

struct Field {
  const char* name;
  void (*set)(ncclConfig_t&);
  ncclResult_t expected;
};
void PrintTo(const Field& field, std::ostream* out) { *out << field.name; }

constexpr Field kFields[] = {
    {"wrong_magic", [](ncclConfig_t& c) { c.magic = 0; }, ncclInvalidArgument},
    {"size_without_magic", [](ncclConfig_t& c) { c.size = 8; }, ncclInvalidArgument},
    {"size_zero", [](ncclConfig_t& c) { c.size = 0; }, ncclInvalidArgument},
    {"blocking_2", [](ncclConfig_t& c) { c.blocking = 2; }, ncclInvalidArgument},
    {"blocking_negative", [](ncclConfig_t& c) { c.blocking = -1; }, ncclInvalidArgument},
    {"cluster_negative", [](ncclConfig_t& c) { c.cgaClusterSize = -1; }, ncclInvalidArgument},
    {"min_ctas_0", [](ncclConfig_t& c) { c.minCTAs = 0, c.maxCTAs = 4; }, ncclInvalidArgument},
    {"min_above_max", [](ncclConfig_t& c) { c.minCTAs = 5, c.maxCTAs = 4; }, ncclInvalidArgument},
    // NCCL compares with "not set" and refuses this one; taking it harms nobody.
    {"min_without_max", [](ncclConfig_t& c) { c.minCTAs = 2; }, ncclSuccess},
    {"max_without_min", [](ncclConfig_t& c) { c.maxCTAs = 2; }, ncclSuccess},
    {"min_and_max", [](ncclConfig_t& c) { c.minCTAs = 1, c.maxCTAs = 2; }, ncclSuccess},
    {"split_share_2", [](ncclConfig_t& c) { c.splitShare = 2; }, ncclInvalidArgument},
    {"traffic_class", [](ncclConfig_t& c) { c.trafficClass = 104; }, ncclSuccess},
    {"name", [](ncclConfig_t& c) { c.commName = "a name"; }, ncclSuccess},
    {"collnet_2", [](ncclConfig_t& c) { c.collnetEnable = 2; }, ncclInvalidArgument},
    {"policy_4", [](ncclConfig_t& c) { c.CTAPolicy = 4; }, ncclInvalidArgument},
    {"policy_zero", [](ncclConfig_t& c) { c.CTAPolicy = NCCL_CTA_POLICY_ZERO; }, ncclSuccess},
    {"shrink_share_2", [](ncclConfig_t& c) { c.shrinkShare = 2; }, ncclInvalidArgument},
    {"nvls_ctas_0", [](ncclConfig_t& c) { c.nvlsCTAs = 0; }, ncclInvalidArgument},
    {"channels_65", [](ncclConfig_t& c) { c.nChannelsPerNetPeer = 65; }, ncclInvalidArgument},
    {"channels_64", [](ncclConfig_t& c) { c.nChannelsPerNetPeer = 64; }, ncclSuccess},
    {"nvlink_centric_2", [](ncclConfig_t& c) { c.nvlinkCentricSched = 2; }, ncclInvalidArgument},
    {"graph_usage_3", [](ncclConfig_t& c) { c.graphUsageMode = 3; }, ncclInvalidArgument},
    {"rma_negative", [](ncclConfig_t& c) { c.numRmaCtx = -1; }, ncclInvalidArgument},
    {"p2p_peers_0", [](ncclConfig_t& c) { c.maxP2pPeers = 0; }, ncclInvalidArgument},
    {"ordering_2", [](ncclConfig_t& c) { c.graphStreamOrdering = 2; }, ncclInvalidArgument},
    {"ordering_1", [](ncclConfig_t& c) { c.graphStreamOrdering = 1; }, ncclSuccess},
};

class ConfigField : public testing::TestWithParam<Field> {};

TEST_P(ConfigField, IsAcceptedOrRefusedAsDocumented) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  GetParam().set(config);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(init_one_rank(&config, &comm), GetParam().expected) << ncclGetLastError(nullptr);
  EXPECT_EQ(comm != nullptr, GetParam().expected == ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);  // null succeeds
}

INSTANTIATE_TEST_SUITE_P(Fields, ConfigField, testing::ValuesIn(kFields),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
