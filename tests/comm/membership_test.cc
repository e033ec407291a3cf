#include "comm/membership.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "topology/graph.h"
#include "topology/xml.h"

namespace niccolite::comm {
namespace {

Membership of(int rank, std::vector<int> machines) {
  Membership membership({.hash = 7,
                         .nranks = static_cast<int>(machines.size()),
                         .rank = rank,
                         .device = rank,
                         .function = "ncclCommInitRank"});
  std::vector<int> devices(machines.size());
  for (size_t i = 0; i < devices.size(); ++i) devices[i] = static_cast<int>(10 + i);
  membership.set_ranks(std::move(machines), std::move(devices), "GPU");
  return membership;
}

TEST(Membership, ARankAloneIsOnOneMachineAndKnowsItsDevice) {
  const Membership alone({.nranks = 1, .rank = 0, .device = 5});
  EXPECT_FALSE(alone.spans_machines());
  EXPECT_EQ(alone.count_machines(), 1);
  EXPECT_EQ(alone.team_size(), 1);
  EXPECT_EQ(alone.device_of(0), 5);
  EXPECT_EQ(alone.place_on_network().ranks_of_machine, 1);
}

TEST(Membership, RanksOfOtherMachinesAreRemote) {
  const Membership second = of(2, {0, 0, 1, 1});
  EXPECT_TRUE(second.spans_machines());
  EXPECT_EQ(second.count_machines(), 2);
  EXPECT_TRUE(second.is_remote(0));
  EXPECT_FALSE(second.is_remote(2));
  EXPECT_FALSE(second.is_remote(3));
  EXPECT_FALSE(of(0, {0, 0}).spans_machines());
}

TEST(Membership, TeamsAreOfOneSizeOrOfOneRank) {
  struct Case {
    std::vector<int> machines;
    int size;
  };
  for (const Case& c : {Case{{0, 0, 0}, 3}, Case{{0, 0, 1, 1}, 2}, Case{{0, 0, 1, 1, 0, 0}, 2},
                        Case{{0, 1, 0, 1}, 1}, Case{{0, 0, 1}, 1}, Case{{0, 0, 0, 1, 1, 2}, 1},
                        Case{{0, 0, 1, 1, 2, 3}, 1}})
    EXPECT_EQ(of(0, c.machines).team_size(), c.size) << testing::PrintToString(c.machines);
}

TEST(Membership, TheNumberOnTheNetworkCountsTheRanksOfTheOwnMachine) {
  const transport::Carrier carrier = of(3, {0, 1, 0, 1, 1}).place_on_network();
  EXPECT_EQ(carrier.number, 1u);
  EXPECT_EQ(carrier.ranks_of_machine, 3);
  EXPECT_TRUE(carrier.nearest.empty());
}

// Ranks 0 and 1 have a switch each, and the port is at the second one.
TEST(Membership, KnowsHowFarAPortIsFromItsGpu) {
  constexpr char kMachine[] = R"(<system version="1">
<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="6" modelid="49">
<pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80" rank="0" gdr="1"/></pci></pci>
<pci busid="0000:41:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0000:42:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="80" rank="1" gdr="1"/></pci>
<pci busid="0000:44:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
<nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x64" maxconn="1024" gdr="1"/></nic>
</pci></pci></cpu></system>)";
  const auto distance = [&](int rank, const char* port) {
    auto graph = topology::Graph::make(topology::read_xml(kMachine, "a test").take());
    Membership membership = of(rank, {0, 0});
    membership.set_graph(std::make_shared<const topology::Graph>(std::move(graph).take()));
    return membership.distance_to_port(port);
  };
  EXPECT_EQ(distance(0, "mlx5_0"), topology::PathType::PHB);
  EXPECT_EQ(distance(1, "mlx5_0"), topology::PathType::PIX);
  EXPECT_EQ(distance(1, "mlx5_1"), topology::PathType::DIS);
  EXPECT_EQ(of(0, {0, 1}).distance_to_port("mlx5_0"), topology::PathType::DIS);  // no graph
}

TEST(Membership, AChildTakesItsRanksFromTheParent) {
  const Membership parent = of(3, {0, 0, 1, 1});
  const std::vector<int> ranks = {3, 0};
  Membership child({.hash = 9, .nranks = 2, .rank = 0, .device = 3});
  child.derive(parent, ranks);
  EXPECT_EQ(child.machines(), (std::vector<int>{1, 0}));
  EXPECT_TRUE(child.is_remote(1));
  EXPECT_EQ(child.device_of(0), 13);
  EXPECT_EQ(child.device_of(1), 10);
  EXPECT_EQ(child.gpu(), "GPU");
  EXPECT_EQ(child.hash(), 9u);
}

TEST(Membership, AChildOfTheSecondMachineAloneSpansNone) {
  Membership child({.nranks = 2, .rank = 1});
  child.derive(of(3, {0, 0, 1, 1}), std::vector<int>{2, 3});
  EXPECT_FALSE(child.spans_machines());
  EXPECT_EQ(child.team_size(), 2);
}

// Their multicast teams serve it.
TEST(Membership, AChildMayHaveAllRanksOfItsMachines) {
  const Membership parent = of(0, {0, 0, 1, 1, 1});
  const auto has = [&](std::vector<int> ranks) {
    Membership child({.hash = 8, .nranks = static_cast<int>(ranks.size()), .rank = 0});
    child.derive(parent, ranks);
    return child.has_whole_machines_of(parent);
  };
  EXPECT_TRUE(has({0, 1, 2, 3, 4}));
  EXPECT_TRUE(has({4, 0, 2, 1, 3}));
  EXPECT_TRUE(has({1, 0}));
  EXPECT_TRUE(has({2, 3, 4}));
  EXPECT_FALSE(has({2, 3}));
  EXPECT_FALSE(has({0, 1, 2}));
  EXPECT_FALSE(has({0, 2}));
}

}  // namespace
}  // namespace niccolite::comm
