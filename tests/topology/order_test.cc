// Ring order and rails.
#include "topology/order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/topology/machines.h"

namespace niccolite::topology {
namespace {

using testing::ElementsAre;

TEST(RingOrder, KeepsNeighborsNear) {
  // The switch with 0 and 2 is left once, that with 1 and 3 entered once.
  EXPECT_THAT(ring_order(graph_of("pcie_4")), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(ring_order(graph_of("two_sockets")), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ring_order(graph_of("nvswitch_8x8")), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(RingOrder, CrossesEachWireOnceInEachDirection) {
  for (const char* name : {"pcie_4", "two_sockets", "nvswitch_8x8"})
    for (const int machines : {2, 3, 5}) {
      const Graph graph = cluster_of(name, machines);
      const std::vector<int> order = ring_order(graph);
      std::vector<int> sorted = order;
      std::ranges::sort(sorted);
      std::vector<int> all(graph.gpus().size());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(sorted, all);
      std::vector<int> out(static_cast<size_t>(machines)), in = out;
      const auto host = [&](int rank) {
        return static_cast<size_t>(
            graph.nodes()[static_cast<size_t>(graph.gpu_of_rank(rank))].host);
      };
      for (size_t i = 0; i < order.size(); ++i) {
        const size_t from = host(order[i]), to = host(order[(i + 1) % order.size()]);
        if (from == to) continue;
        ++out[from];
        ++in[to];
      }
      EXPECT_THAT(out, testing::Each(1));
      EXPECT_THAT(in, testing::Each(1));
    }
}

TEST(RingOrder, TakesMachinesByTheirFirstRankHoweverRanksLie) {
  // Ranks dealt to two machines in turns.
  Description whole;
  for (int machine = 0; machine < 2; ++machine) {
    Description one = description_of("pcie_4");
    for (Cpu& cpu : one.cpus) cpu.host = machine == 0 ? "first" : "second";
    for_each_gpu(one, [&](Cpu&, Pci&, Gpu& gpu) { gpu.rank = 2 * gpu.rank + machine; });
    ASSERT_TRUE(merge(whole, one).is_ok());
  }
  EXPECT_THAT(ring_order(Graph::make(std::move(whole)).take()),
              ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
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
