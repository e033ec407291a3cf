// Rings and rails.
#include "topology/rings.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/topology/machines.h"
#include "topology/rails.h"

namespace niccolite::topology {
namespace {

using testing::ElementsAre;

int host_of(const Graph& graph, int rank) {
  return graph.nodes()[static_cast<size_t>(graph.gpu_of_rank(rank))].host;
}
const std::string& rail_of(const Graph& graph, int rank) {
  return graph.nodes()[static_cast<size_t>(rails(graph)[static_cast<size_t>(rank)])].name;
}

/// Hops of a ring from machine to machine.
std::vector<std::pair<int, int>> crossings(const Graph& graph, const std::vector<int>& ring) {
  std::vector<std::pair<int, int>> hops;
  for (size_t i = 0; i < ring.size(); ++i) {
    const int from = ring[i], to = ring[(i + 1) % ring.size()];
    if (host_of(graph, from) != host_of(graph, to)) hops.emplace_back(from, to);
  }
  return hops;
}

/// Numbers of ranks dealt anew: of the GPU of rank i, by[i].
Graph renumbered(Description description, const std::vector<int>& by) {
  for_each_gpu(description,
               [&](Cpu&, Pci&, Gpu& gpu) { gpu.rank = by[static_cast<size_t>(gpu.rank)]; });
  return Graph::make(std::move(description)).take();
}

/// One socket with GPUs 0, 1, ... that have these direct NVLinks to each other.
Graph linked(int gpus, const std::vector<std::pair<int, int>>& links) {
  Description description{.cpus = {Cpu{.numa = 0, .arch = "x86_64", .vendor = "GenuineIntel"}}};
  const auto bus_id = [](int gpu) { return fmt::format("0000:{:02x}:00.0", gpu + 1); };
  for (int gpu = 0; gpu < gpus; ++gpu) {
    Gpu of{.device = gpu, .compute_capability = 70, .rank = gpu};
    for (const auto& [a, b] : links)
      if (a == gpu || b == gpu)
        of.nvlinks.push_back(
            {.target = bus_id(a == gpu ? b : a), .count = 2, .target_class = "0x030200"});
    std::ranges::sort(of.nvlinks, {}, &NvLink::target);
    description.cpus[0].below.push_back(
        Pci{.bus_id = bus_id(gpu), .device_class = "0x030200", .gpu = of});
  }
  return Graph::make(std::move(description)).take();
}

TEST(Rings, KeepNeighborsNear) {
  // The switch with 0 and 2 is left once, that with 1 and 3 entered once.
  EXPECT_THAT(rings(graph_of("pcie_4")), ElementsAre(ElementsAre(0, 2, 3, 1)));
  EXPECT_THAT(rings(graph_of("two_sockets")), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(rings(graph_of("nvswitch_8x8")), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
}

TEST(Rings, GoBackWhereTheNearestLeavesNoWayOn) {
  // From 0 the nearest first leads to 1 and 2, from which 3 is far.
  const Graph graph = linked(5, {{0, 1}, {1, 2}, {0, 2}, {0, 3}, {3, 4}, {2, 4}});
  for (const std::vector<int>& ring : rings(graph))
    for (size_t i = 0; i < ring.size(); ++i)
      EXPECT_EQ(graph.distance(ring[i], ring[(i + 1) % ring.size()]), PathType::NVL)
          << testing::PrintToString(ring);
}

TEST(Rings, OfOneMachineShareNoDirectLink) {
  // Each of four with each other: there and back.
  const Graph all = linked(4, {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}});
  const std::vector<std::vector<int>> found = rings(all);
  ASSERT_GE(found.size(), 2u);
  std::set<std::pair<int, int>> hops;
  for (const std::vector<int>& ring : found)
    for (size_t i = 0; i < ring.size(); ++i)
      EXPECT_TRUE(hops.emplace(ring[i], ring[(i + 1) % ring.size()]).second);
  // A cycle has two directions, and no more.
  EXPECT_THAT(rings(linked(4, {{0, 1}, {1, 2}, {2, 3}, {0, 3}})),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 3, 2, 1)));
  // Where a hop of every ring shares the bus, one ring has what there is.
  EXPECT_EQ(rings(linked(4, {{0, 1}, {2, 3}})).size(), 1u);
}

TEST(Rings, CrossEachWireOnceInEachDirectionByAnotherRailEach) {
  for (const char* name : {"pcie_4", "two_sockets", "nvswitch_8x8"})
    for (const int machines : {2, 3, 4, 5}) {
      SCOPED_TRACE(fmt::format("{} x {}", machines, name));
      const Graph graph = cluster_of(name, machines);
      std::set<int> out, in;  // ranks
      const std::vector<std::vector<int>> found = rings(graph);
      EXPECT_EQ(found.size(), std::string(name) == "nvswitch_8x8" ? 8u : 1u);
      for (const std::vector<int>& ring : found) {
        std::vector<int> sorted = ring;
        std::ranges::sort(sorted);
        std::vector<int> all(graph.gpus().size());
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(sorted, all);
        int changes = 0;
        std::set<int> left, entered;  // machines
        for (const auto& [from, to] : crossings(graph, ring)) {
          EXPECT_TRUE(left.insert(host_of(graph, from)).second);
          EXPECT_TRUE(entered.insert(host_of(graph, to)).second);
          EXPECT_TRUE(out.insert(from).second && in.insert(to).second);
          changes += rail_of(graph, from) == rail_of(graph, to) ? 0 : 1;
        }
        EXPECT_EQ(left.size(), static_cast<size_t>(machines));
        EXPECT_EQ(changes, found.size() > 1 ? machines % 2 : 0);
      }
    }
}

TEST(Rings, TakeMachinesByTheirFirstRankHoweverRanksLie) {
  // Ranks dealt to two machines in turns.
  const Graph graph = renumbered(cluster_of("pcie_4", 2).description(), {0, 2, 4, 6, 1, 3, 5, 7});
  EXPECT_THAT(rings(graph), ElementsAre(ElementsAre(0, 4, 6, 2, 1, 5, 7, 3)));
}

TEST(Rings, KeepMachinesTogetherOfRanksInAnyOrder) {
  std::mt19937 random(20260607);
  const Description cluster = Description(cluster_of("nvswitch_8x8", 3).description());
  std::vector<int> numbers(24);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int i = 0; i < 10; ++i) {
    std::ranges::shuffle(numbers, random);
    SCOPED_TRACE(testing::PrintToString(numbers));
    const Graph graph = renumbered(cluster, numbers);
    const std::vector<std::vector<int>> found = rings(graph);
    EXPECT_EQ(found.size(), 8u);
    for (const std::vector<int>& ring : found) {
      EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), 24u);
      EXPECT_EQ(crossings(graph, ring).size(), 3u);
    }
  }
}

TEST(Rings, OfSomeRanksAreOfTheirOwnNumbers) {
  const Graph graph = cluster_of("nvswitch_8x8", 2);
  // Ranks 0 to 3 of a communicator: what the graph knows as 9, 2, 8 and 3.
  const std::vector<int> ranks{9, 2, 8, 3}, machines{1, 0, 1, 0};
  EXPECT_THAT(rings(graph, rails(graph), ranks, machines),
              ElementsAre(ElementsAre(2, 0, 3, 1), ElementsAre(0, 2, 1, 3)));
}

TEST(Rings, HaveRanksWhoseGpuIsKnownByAnother) {
  // Two ranks of one GPU: the graph has the first alone.
  const Graph graph = cluster_of("pcie_4", 2);
  const std::vector<int> ranks{0, 1, 99, 4, 98}, machines{0, 0, 0, 1, 1};
  for (const std::vector<int>& ring : rings(graph, rails(graph), ranks, machines)) {
    EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), 5u);
    EXPECT_EQ(std::set<int>(ring.begin(), ring.begin() + 3), (std::set<int>{0, 1, 2}));
  }
}

std::vector<std::string> names_of_rails(const Graph& graph) {
  std::vector<std::string> names;
  for (const int node : rails(graph))
    names.push_back(node < 0 ? "none" : graph.nodes()[static_cast<size_t>(node)].name);
  return names;
}

TEST(Rails, AreTheNearestNetworkDevices) {
  EXPECT_THAT(
      names_of_rails(graph_of("nvswitch_8x8")),
      ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"));
  EXPECT_THAT(names_of_rails(graph_of("two_sockets")), testing::Each("eth1"));
  const Graph cluster = cluster_of("nvswitch_8x8", 2);
  const std::vector<int> of = rails(cluster);
  EXPECT_EQ(cluster.nodes()[static_cast<size_t>(of[8])].name, "mlx5_0");
  EXPECT_EQ(cluster.nodes()[static_cast<size_t>(of[8])].host, 1);
}

TEST(Rails, AreSharedEvenlyByGpusThatHaveTheSame) {
  Description description = description_of("pcie_4");
  Net second = description.cpus[0].below[1].below.back().nets[0];
  second.device = 1;
  second.name = "eth1";
  description.cpus[0].below[1].below.back().nets.push_back(second);
  const Graph graph = Graph::make(std::move(description)).take();
  EXPECT_THAT(names_of_rails(graph), ElementsAre("eth0", "eth1", "eth0", "eth1"));
}

TEST(Rails, OfAMachineWithoutNetwork) {
  Description description = description_of("two_sockets");
  for (Cpu& cpu : description.cpus) cpu.nets.clear();
  EXPECT_THAT(rails(Graph::make(std::move(description)).take()), testing::Each(-1));
}

}  // namespace
}  // namespace niccolite::topology
