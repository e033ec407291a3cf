#include "comm/ways.h"

#include <gtest/gtest.h>

namespace niccolite::comm {
namespace {

using transport::PeerAccess;

/// Two machines of two ranks, or one of all; rank 0 looks, and has told and heard the best of all.
struct Example {
  explicit Example(std::vector<int> machines)
      : membership({.nranks = static_cast<int>(machines.size()), .rank = 0, .device = 0}),
        ranks(machines.size()),
        peers(machines.size()) {
    const size_t n = machines.size();
    membership.set_ranks(std::move(machines), std::vector<int>(n, 0), "GPU");
    links.opens_buffers.assign(n, true);
    links.opens_buffers[0] = false;
    links.shares_atomics.assign(n, true);
    links.access.assign(n, PeerAccess::Works);
    for (size_t peer = 0; peer < n; ++peer) {
      ranks[peer].bus_id = "0000:1" + std::to_string(peer) + ":00.0";
      peers[peer] = {.opens_own_buffers = peer != 0,
                     .opens_all_buffers = true,
                     .shares_own_atomics = true,
                     .shares_all_atomics = true};
    }
  }
  Ways combine() const {
    return Ways::combine(links, peers, ranks, membership, [](int) { return true; });
  }

  Membership membership;
  std::vector<RankInfo> ranks;
  Links links;
  std::vector<PeerLinks> peers;
};

operations::OneSidedCall put_to(int peer) {
  operations::OneSidedCall put;
  put.peer = peer;
  return put;
}

TEST(Ways, ARankAloneNeedsNoNetwork) {
  EXPECT_FALSE(Ways().needs_network());
  EXPECT_TRUE(Ways().maps_all_memory());
}

TEST(Ways, OnOneMachineWithPeerAccessAllMemoryIsReached) {
  const Example example({0, 0, 0});
  const Ways ways = example.combine();
  EXPECT_FALSE(ways.needs_network());
  EXPECT_TRUE(ways.maps_all_memory());
  EXPECT_TRUE(ways.reach().is_whole);
  EXPECT_TRUE(ways.reach().has_whole_windows);
  EXPECT_EQ(ways.reaching_peers(), (std::vector<int>{1, 2}));
  EXPECT_EQ(ways.torn_link(), "");
  EXPECT_TRUE(ways.check(put_to(2), example.membership).is_ok());
}

TEST(Ways, OtherMachinesNeedTheNetworkAndTakePuts) {
  const Example example({0, 0, 1, 1});
  const Ways ways = example.combine();
  EXPECT_TRUE(ways.needs_network());
  EXPECT_FALSE(ways.maps_all_memory());
  EXPECT_FALSE(ways.reach().out[2]);
  EXPECT_EQ(ways.reaching_peers(), (std::vector<int>{1}));
  EXPECT_TRUE(ways.has_windows());
  EXPECT_TRUE(ways.check(put_to(2), example.membership).is_ok());
  EXPECT_TRUE(ways.check(put_to(1), example.membership).is_ok());
  operations::OneSidedCall wait;
  wait.waits = {{.peer = 1, .count = 1}, {.peer = 3, .count = 1}};
  EXPECT_TRUE(ways.check(wait, example.membership).is_ok());
  EXPECT_EQ(ways.load_store_ranks(example.membership), 2);
}

TEST(Ways, TheWorseOfTwoAnswersIsThatOfAPair) {
  Example example({0, 0, 0});
  example.peers[1].own_access = PeerAccess::Broken;  // rank 1 found it out
  example.peers[1].lacks_access = true;
  const Ways ways = example.combine();
  EXPECT_EQ(ways.reach().pairs[1].peer_access, PeerAccess::Broken);
  EXPECT_FALSE(ways.reach().out[1]);
  EXPECT_FALSE(ways.reach().in[1]);
  EXPECT_TRUE(ways.reach().out[2]);
  EXPECT_FALSE(ways.check(put_to(1), example.membership).is_ok());
}

TEST(Ways, HostMemoryConnectsRanksWithoutPeerAccessUnlessARankRefuses) {
  Example example({0, 0, 0});
  example.peers[2].lacks_access = true;
  Ways ways = example.combine();
  EXPECT_TRUE(ways.lacks_access());
  EXPECT_FALSE(ways.needs_network());
  EXPECT_FALSE(ways.maps_all_memory());
  EXPECT_FALSE(ways.has_windows());
  EXPECT_EQ(ways.load_store_ranks(example.membership), 1);
  EXPECT_FALSE(ways.reach().is_whole);
  EXPECT_NE(ways.torn_link().find("share host memory"), std::string::npos);
  example.peers[1].shares_host = false;  // NCCL_SHM_DISABLE=1
  EXPECT_TRUE(example.combine().needs_network());
}

TEST(Ways, NamesTheFirstTornLink) {
  Example example({0, 0, 0});
  example.peers[1].torn = 2;
  example.peers[2].torn = 1;
  const Ways ways = example.combine();
  EXPECT_NE(ways.torn_link().find("rank 1"), std::string::npos);
  EXPECT_TRUE(ways.maps_all_memory());
}

TEST(Ways, AChildKeepsTheWaysOfItsRanks) {
  Example example({0, 0, 1, 1});
  example.links.shares_atomics[1] = false;
  const std::vector<int> ranks = {1, 0};
  Membership child({.nranks = 2, .rank = 1});
  child.derive(example.membership, ranks);
  const Ways ways = Ways::derive(example.combine(), child, ranks, /*is_whole=*/true);
  EXPECT_FALSE(ways.needs_network()) << "it is on one machine";
  EXPECT_EQ(ways.reach().windows, (std::vector<bool>{false, true}));
  EXPECT_EQ(ways.reaching_peers(), (std::vector<int>{0}));
  EXPECT_EQ(ways.reach().pairs.size(), 2u);
}

TEST(Ways, APeerReachesOnce) {
  Ways ways = Example({0, 0}).combine();
  ways.add_reaching(1);
  EXPECT_EQ(ways.reaching_peers(), (std::vector<int>{1}));
}

}  // namespace
}  // namespace niccolite::comm
