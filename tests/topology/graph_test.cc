// Distances and bandwidths on machines that are known.
#include <gmock/gmock.h>

#include "tests/topology/machines.h"
#include "topology/draw.h"

namespace niccolite::topology {
namespace {

using enum PathType;
using testing::HasSubstr;

PathType net_distance(const Graph& graph, int rank, int net) {
  return graph.path(graph.gpu_of_rank(rank), graph.nets()[static_cast<size_t>(net)]).type;
}

TEST(MachineGraph, OfEightGpusAtASwitch) {
  const Graph graph = graph_of("nvswitch_8x8");
  ASSERT_EQ(graph.gpus().size(), 8u);
  ASSERT_EQ(graph.nets().size(), 8u);
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      EXPECT_EQ(graph.distance(a, b), a == b ? LOC : NVL) << a << " " << b;
      EXPECT_EQ(net_distance(graph, a, b), a == b ? PIX : (a / 4 == b / 4 ? PHB : SYS));
    }
  }
  const Path& path = graph.path(graph.gpu_of_rank(0), graph.gpu_of_rank(7));
  EXPECT_NEAR(path.bandwidth, 18 * 20.6, 1e-9);
  // PCIe 5 with 16 lanes carries 48 GB/s, 400 Gbit/s are 50.
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(0), graph.nets()[0]).bandwidth, 48, 1e-9);
}

TEST(MachineGraph, OfAMachineWithoutNvlink) {
  const Graph graph = graph_of("pcie_4");
  EXPECT_EQ(graph.distance(0, 2), PIX);
  EXPECT_EQ(graph.distance(1, 3), PIX);
  EXPECT_EQ(graph.distance(0, 1), PHB);
  EXPECT_EQ(net_distance(graph, 1, 0), PIX);
  EXPECT_EQ(net_distance(graph, 0, 0), PHB);
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(0), graph.gpu_of_rank(1)).bandwidth, 24, 1e-9);
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(1), graph.nets()[0]).bandwidth, 12.5, 1e-9);
}

TEST(MachineGraph, OfTwoSockets) {
  const Graph graph = graph_of("two_sockets");
  EXPECT_EQ(graph.distance(0, 1), NVL);
  EXPECT_EQ(graph.distance(1, 2), NVL);
  EXPECT_EQ(graph.distance(0, 2), NVB);  // through rank 1
  EXPECT_EQ(graph.distance(2, 3), PHB);
  EXPECT_EQ(graph.distance(0, 3), SYS);
  EXPECT_EQ(net_distance(graph, 3, 0), PHB);
  EXPECT_EQ(net_distance(graph, 0, 0), SYS);
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(0), graph.gpu_of_rank(2)).bandwidth, 40, 1e-9);
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(0), graph.gpu_of_rank(3)).bandwidth, 6, 1e-9);
}

TEST(MachineGraph, OfSwitchesBelowEachOther) {
  Description description = description_of("two_sockets");
  for_each_gpu(description, [](Cpu&, Pci&, Gpu& gpu) { gpu.nvlinks.clear(); });
  EXPECT_EQ(Graph::make(std::move(description)).take().distance(0, 1), PXB);
}

TEST(MachineGraph, OfAChipThatIsBoth) {
  Description description = description_of("two_sockets");
  for_each_gpu(description, [](Cpu&, Pci&, Gpu& gpu) {
    if (gpu.rank == 3) gpu.c2c = C2c{.megabytes = 50'000, .count = 9};
  });
  const Graph graph = Graph::make(std::move(description)).take();
  EXPECT_EQ(net_distance(graph, 3, 0), P2C);
  EXPECT_EQ(net_distance(graph, 2, 0), PHB);
}

TEST(MachineGraph, OfSeveralMachines) {
  const Graph graph = cluster_of("pcie_4", 3);
  EXPECT_EQ(graph.hosts(), 3);
  EXPECT_EQ(graph.distance(0, 2), PIX);
  EXPECT_EQ(graph.distance(4, 6), PIX);
  EXPECT_EQ(graph.distance(0, 4), NET);
  EXPECT_EQ(graph.distance(0, 12), DIS);
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(1), graph.gpu_of_rank(5)).bandwidth, 12.5, 1e-9);
}

TEST(MachineGraph, IsTheSameWhoeverTellsOfIt) {
  // Each rank knows its own GPU and all network devices; they are merged in the order of ranks.
  Description whole;
  for (int rank = 0; rank < 8; ++rank) {
    Description part = description_of("nvswitch_8x8");
    for_each_gpu(part, [&](Cpu&, Pci&, Gpu& gpu) {
      if (gpu.rank != rank) gpu.rank = -1;
    });
    trim(part);
    int gpus = 0;
    for_each_gpu(part, [&](Cpu&, Pci&, Gpu&) { ++gpus; });
    EXPECT_EQ(gpus, 1);
    ASSERT_TRUE(merge(whole, part).is_ok());
  }
  EXPECT_EQ(write_xml(whole), write_xml(description_of("nvswitch_8x8")));
}

TEST(MachineGraph, RefusesDescriptionsThatContradictEachOther) {
  Description whole = description_of("pcie_4"), other = description_of("pcie_4");
  for_each_gpu(other, [](Cpu&, Pci&, Gpu& gpu) { gpu.compute_capability = 90; });
  const Status status = merge(whole, other);
  EXPECT_THAT(status.message(),
              HasSubstr("0000:02:00.0 is described with compute capability 80 and 90"));
}

TEST(PathTypes, HaveTheNamesAndNumbersOfTheirVariable) {
  EXPECT_EQ(path_type_from("PXB").take(), PXB);
  EXPECT_EQ(path_type_from("SYS").take(), SYS);
  EXPECT_EQ(path_type_from("3").take(), PHB);
  EXPECT_EQ(path_type_from("9").take(), SYS);
  for (const char* wrong : {"", "sys", "NET", "DIS", "-1", "3x"})
    EXPECT_FALSE(path_type_from(wrong).is_ok()) << wrong;
}

TEST(Drawings, HaveAllThatThereIs) {
  const Graph graph = cluster_of("nvswitch_8x8", 2);
  const std::string text = draw_text(graph);
  for (const char* part : {"machine host1", "NUMA node 1", "0000:81:00.0 GPU 7 (rank 15)",
                           "NVLink x18 to a switch", "net 7 mlx5_7  400000 Mbit/s", "rank 12",
                           "NVL", "PIX", "SYS", "NET", "Rings of ranks\n  0: 0 1 2"})
    EXPECT_THAT(text, HasSubstr(part));
  const std::string svg = draw_svg(graph);
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  for (const char* part : {"machine host1", "NUMA node 1", ">GPU 7<", ">rank 15<", ">mlx5_7<",
                           "NVSwitch", ">Rings of ranks<", ">Distances<", ">NVL<", ">NET<",
                           "; slowest hop of the rings: rank ", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
}

TEST(Drawings, MarkTheGpuOnASlowBus) {
  Description description = description_of("pcie_4");
  EXPECT_THAT(draw_svg(Graph::make(description).take()), Not(HasSubstr(", slow<")));
  int number = 0;
  for_each_gpu(description, [&](Cpu&, Pci& pci, Gpu&) {
    if (number++ == 2) pci.link_width = 4;
  });
  EXPECT_THAT(draw_svg(Graph::make(description).take()), HasSubstr(" x4, slow<"));
}

}  // namespace
}  // namespace niccolite::topology
