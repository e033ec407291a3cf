// What ranks tell each other when a communicator is made: it survives the wire, anything else is
// refused, and so are ranks that would choose differently.
#include "comm/rank_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/links.h"
#include "comm/version.h"

namespace niccolite::comm {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;

RankInfo make_info(int rank) {
  RankInfo info;
  info.version = kVersionCode;
  info.device = rank;
  info.host = "boot";
  info.host_name = "box";
  info.device_uuid[0] = static_cast<uint8_t>(rank);
  info.bus_id = fmt::format("0000:{:02x}:00.0", rank);
  info.gpu = "NVIDIA H200";
  info.places = 132;
  info.fingerprint = planner::fingerprint();
  if (rank == 0) info.settings = planner::make_settings(gpu::Kind::Virtual, kRanks, {}).value();
  info.variables = {{"NCCL_ALGO", "ring"}};
  return info;
}

std::vector<RankInfo> make_all() {
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(make_info(rank));
  return ranks;
}

TEST(RankInfo, SurvivesTheWire) {
  for (int rank = 0; rank < 2; ++rank) {
    RankInfo sent = make_info(rank);
    if (sent.settings) {
      sent.settings->max_channels = 7;
      sent.settings->protocols[2][1] = false;
      sent.settings->pull_block = 12345;
      planner::set_reach(*sent.settings, true);
    }
    const RankInfo info = decode(encode(sent), rank, kRanks).value();
    EXPECT_EQ(info.device, rank);
    EXPECT_EQ(info.host_name, "box");
    EXPECT_EQ(info.bus_id, sent.bus_id);
    EXPECT_EQ(info.gpu, sent.gpu);
    EXPECT_EQ(info.device_uuid, sent.device_uuid);
    EXPECT_EQ(info.places, sent.places);
    EXPECT_EQ(info.fingerprint, sent.fingerprint);
    EXPECT_EQ(info.settings, sent.settings);
    EXPECT_EQ(info.variables, sent.variables);
  }
}

TEST(RankInfo, NamesTheGpuThatAllRanksHave) {
  std::vector<RankInfo> ranks = make_all();
  EXPECT_EQ(gpu_of(ranks), "NVIDIA H200");
  ranks[2].gpu = "NVIDIA A100";
  EXPECT_EQ(gpu_of(ranks), "");
}

TEST(RankInfo, RanksOfOneGpuShareItsPlaces) {
  std::vector<RankInfo> ranks = make_all();
  for (RankInfo& info : ranks) info.places = 100;
  EXPECT_EQ(most_ctas_of_sharers(ranks), std::nullopt);
  ranks[3].device_uuid = ranks[2].device_uuid;
  EXPECT_EQ(most_ctas_of_sharers(ranks), 50);
  for (RankInfo& info : ranks) info.device_uuid = {};
  EXPECT_EQ(most_ctas_of_sharers(ranks), 25);
  ranks[0].host = "other";  // another machine's GPU may have the same number
  ranks[1].places = ranks[2].places = ranks[3].places = 2;
  EXPECT_EQ(most_ctas_of_sharers(ranks), 1);
  for (RankInfo& info : ranks) info.places = 0;
  EXPECT_EQ(most_ctas_of_sharers(ranks), std::nullopt);
}

TEST(RankInfo, CutOrGrownIsRefusedWithTheRank) {
  const Bytes whole = encode(make_info(0));
  for (size_t length = 4; length < whole.size(); ++length) {
    const auto decoded = decode(std::span(whole).first(length), 0, kRanks);
    ASSERT_FALSE(decoded.is_ok()) << length;
    EXPECT_EQ(decoded.status().code(), Code::RemoteError);
    EXPECT_THAT(decoded.status().message(), HasSubstr("rank 0"));
  }
  Bytes grown = whole;
  grown.push_back(std::byte{0});
  EXPECT_FALSE(decode(grown, 0, kRanks).is_ok());
}

TEST(RankInfo, SettingsThatNoRankCanHaveAreRefused) {
  const auto refuses = [](auto&& spoil) {
    RankInfo info = make_info(0);
    spoil(*info.settings);
    return !decode(encode(info), 0, kRanks).is_ok();
  };
  EXPECT_FALSE(refuses([](planner::Settings&) {}));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.max_channels = 65; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.min_channels = 0; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) {
    s.max_channels = 4;
    s.min_channels = 5;
  }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.threads = 1 << 20; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.threads = 33; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.chunk_parts = -1; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.slots_bytes = -5; }));
  EXPECT_TRUE(refuses([](planner::Settings& s) { s.policy = planner::CtaPolicy{9}; }));
  // Only the first rank's hold, and only it tells them.
  EXPECT_FALSE(decode(encode(make_info(0)), 1, kRanks).is_ok());
  EXPECT_FALSE(decode(encode(make_info(1)), 0, kRanks).is_ok());
}

TEST(RankInfo, AnotherVersionIsNamedWhateverElseItSends) {
  Writer writer;
  writer.u32(22804);
  writer.u8(1);
  const Status status = decode(writer.bytes(), 2, kRanks).status();
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_THAT(status.message(), HasSubstr("rank 2 runs a library of version code 22804"));
}

TEST(RankInfo, OfAnotherBuildIsRefusedByAllWithWhatDiffers) {
  struct Case {
    void (*spoil)(planner::Fingerprint&);
    const char* text;
  };
  for (const auto& [spoil, text] :
       {Case{[](planner::Fingerprint& f) { f.build ^= 1; }, "differ in the build ("},
        Case{[](planner::Fingerprint& f) { f.arithmetic ^= 1; },
             "differ in the arithmetic of the cost model"},
        Case{[](planner::Fingerprint& f) { f.limits ^= 1; },
             "differ in the limits of algorithms and connections"}}) {
    for (const int other : {0, 2}) {
      std::vector<RankInfo> ranks = make_all();
      ASSERT_TRUE(check(ranks).is_ok());
      spoil(ranks[static_cast<size_t>(other)].fingerprint);
      const Status status = check(ranks);
      ASSERT_EQ(status.code(), Code::InvalidUsage);
      EXPECT_THAT(status.message(), HasSubstr(text));
      EXPECT_THAT(status.message(), HasSubstr(other == 0 ? "rank 1 on host box (one of 3)"
                                                         : "rank 2 on host box has loaded"));
    }
  }
  // Files of a user are none of a build.
  std::vector<RankInfo> tuned = make_all();
  tuned[1].fingerprint.tuning ^= 1;
  const Status status = check(tuned);
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 on host box has other tuning files than rank 0"));
  EXPECT_THAT(status.message(), HasSubstr("NICCOLITE_TUNING"));
  // What it sends behind its fingerprint may be anything.
  RankInfo other = make_info(2);
  other.fingerprint.build ^= 1;
  Bytes bytes = encode(other);
  bytes.resize(bytes.size() - 3);
  const RankInfo decoded = decode(bytes, 2, kRanks).value();
  EXPECT_EQ(decoded.host_name, "box");
  EXPECT_EQ(decoded.fingerprint, other.fingerprint);
}

TEST(RankInfo, OfSeveralMachinesMayMeetOnVirtualGpus) {
  std::vector<RankInfo> ranks = make_all();
  for (RankInfo& info : ranks) info.machine = gpu::Kind::Virtual;
  EXPECT_THAT(machines_of(ranks), testing::Each(0));
  ranks[1].host = ranks[3].host = "another";
  ranks[2].host = "a third";
  EXPECT_THAT(machines_of(ranks), testing::ElementsAre(0, 1, 2, 1));
  EXPECT_TRUE(check(ranks).is_ok());
  // Ordinals mean other GPUs there.
  ranks[1].device_uuid = ranks[0].device_uuid;
  EXPECT_TRUE(check(ranks).is_ok());
  ranks[1].device_uuid = ranks[3].device_uuid;
  EXPECT_THAT(check(ranks).message(), HasSubstr("ranks 1 and 3 both use GPU"));
  ranks[1].device_uuid = ranks[0].device_uuid;
  for (RankInfo& info : ranks) info.machine = gpu::Kind::Cuda;
  EXPECT_TRUE(check(ranks).is_ok());
}

TEST(RankInfo, VariablesThatDifferAreNamedWithValuesAndRanks) {
  std::vector<RankInfo> ranks = make_all();
  const auto differences = [&] {
    std::vector<const std::vector<planner::Variable>*> variables;
    for (const RankInfo& info : ranks) variables.push_back(&info.variables);
    return planner::describe_differences(variables);
  };
  EXPECT_TRUE(differences().empty());
  ranks[1].variables = {};
  ranks[2].variables = {{"NCCL_ALGO", "pat"}, {"NCCL_MAX_CTAS", "4"}};
  EXPECT_THAT(differences(),
              testing::ElementsAre(
                  "NCCL_ALGO is \"ring\" on ranks 0 and 3, not set on rank 1, \"pat\" on rank 2: "
                  "rank 0's holds for all",
                  "NCCL_MAX_CTAS is not set on ranks 0, 1 and 3, \"4\" on rank 2: rank 0's holds "
                  "for all"));
}

TEST(Links, TellEachPeerWhatConcernsIt) {
  const Links links{
      .opens_buffers = {true, false, true}, .shares_atomics = {false, true, true}, .torn = 2};
  const PeerLinks of_first = decode_links(encode(links), 1, 0, 3).value();
  EXPECT_TRUE(of_first.opens_own_buffers);
  EXPECT_TRUE(of_first.opens_all_buffers);
  EXPECT_FALSE(of_first.shares_own_atomics);
  EXPECT_FALSE(of_first.shares_all_atomics);
  EXPECT_EQ(of_first.torn, 2);
  const PeerLinks of_self = decode_links(encode(links), 1, 1, 3).value();
  EXPECT_FALSE(of_self.opens_own_buffers);
  EXPECT_TRUE(of_self.shares_own_atomics);
  const Links some{.opens_buffers = {false, false, true}, .shares_atomics = {true, true, true}};
  const PeerLinks of_some = decode_links(encode(some), 1, 0, 3).value();
  EXPECT_FALSE(of_some.opens_all_buffers);
  EXPECT_TRUE(of_some.shares_all_atomics);
  EXPECT_EQ(of_first.own_access, transport::PeerAccess::Works);
  EXPECT_FALSE(of_first.lacks_access || of_first.has_untried);
  EXPECT_TRUE(of_first.shares_host);
  // Of another number of ranks, or to one that there is not.
  EXPECT_EQ(decode_links(encode(links), 1, 0, 4).status().code(), Code::RemoteError);
  EXPECT_FALSE(decode_links(encode(links), 1, 0, 2).is_ok());
}

TEST(Links, TellWhichPeersMemoryIsReached) {
  using transport::PeerAccess;
  Links links{.opens_buffers = {false, false, false},
              .shares_atomics = {false, true, false},
              .access = {PeerAccess::Untried, PeerAccess::Works, PeerAccess::Broken},
              .shares_host = false};
  const PeerLinks of_first = decode_links(encode(links), 1, 0, 3).value();
  EXPECT_EQ(of_first.own_access, PeerAccess::Untried);
  EXPECT_TRUE(of_first.has_untried);
  EXPECT_TRUE(of_first.lacks_access);
  EXPECT_FALSE(of_first.shares_host);
  EXPECT_EQ(decode_links(encode(links), 1, 2, 3).value().own_access, PeerAccess::Broken);
  links.access[2] = PeerAccess::Works;
  EXPECT_FALSE(decode_links(encode(links), 1, 0, 3).value().lacks_access);
  Bytes bytes = encode(links);
  bytes.back() = std::byte{transport::kPeerAccesses << 2};
  EXPECT_FALSE(decode_links(bytes, 1, 2, 3).is_ok());
}

}  // namespace
}  // namespace niccolite::comm
