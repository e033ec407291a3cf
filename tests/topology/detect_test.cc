// What is found in /sys: trees of our own, and this machine's.
#include "topology/detect.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "topology/graph.h"
#include "topology/rails.h"
#include "topology/xml.h"

namespace niccolite::topology {
namespace {

namespace fs = std::filesystem;

class FakeSystem : public testing::Test {
 protected:
  FakeSystem() { fs::create_directories(root_ + "/sys/bus/pci/devices"); }
  ~FakeSystem() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  // A device at the end of a path of bus ids, and all above it.
  void add(const std::vector<std::string>& ids, const std::string& device_class, int numa) const {
    std::string path = "/sys/devices/pci0000:00";
    for (const std::string& id : ids) {
      path += "/" + id;
      write(path + "/class", &id == &ids.back() ? device_class : "0x060400");
      write(path + "/numa_node", std::to_string(numa));
      write(path + "/max_link_speed", "16.0 GT/s PCIe");
      write(path + "/max_link_width", "16");
      const std::string link = root_ + "/sys/bus/pci/devices/" + id;
      if (!fs::exists(fs::symlink_status(link))) fs::create_symlink(root_ + path, link);
    }
  }

  // The graph of ranks whose GPUs have these bus ids, each of which reads the file.
  Graph graph_of_file(const std::string& text, const std::vector<std::string>& bus_ids,
                      std::span<const Port> ports) const {
    Description whole;
    int rank = 0;
    for (const std::string& bus_id : bus_ids) {
      const RankGpu gpu{.rank = rank,
                        .device = rank,
                        .kind = gpu::Kind::Cuda,
                        .bus_id = bus_id,
                        .compute_capability = 90};
      ++rank;
      Description description = read_xml(text, "f.xml").take();
      EXPECT_EQ(place_rank(description, detect(root_, "here", gpu, ports), "here", gpu, "f.xml")
                    .message(),
                "");
      trim(description);
      EXPECT_EQ(merge(whole, description).message(), "");
    }
    return Graph::make(std::move(whole)).take();
  }

  const std::string root_ =
      fs::temp_directory_path().string() + "/niccolite_topology_" + std::to_string(getpid());
};

TEST_F(FakeSystem, IsFoundWithItsSwitches) {
  write("/proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143");
  write("/sys/devices/system/node/node1/cpumap", "ffff0000");
  // Root port, a switch's upper and lower port, the device.
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:04.0", "0000:03:00.0"}, "0x030200", 1);
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:08.0", "0000:04:00.0"}, "0x030200", 1);
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:0c.0", "0000:05:00.0"}, "0x020000", 1);
  add({"0000:00:02.0", "0000:06:00.0"}, "0x030200", 0);  // without a switch
  fs::create_directories(root_ + "/sys/class/net/eth7");
  fs::create_symlink(root_ + "/sys/bus/pci/devices/0000:05:00.0",
                     root_ + "/sys/class/net/eth7/device");

  Description whole;
  const std::vector<Port> ports{{"eth7", 25'000}, {"veth", 10'000}};
  int rank = 0;
  for (const char* bus_id : {"0000:03:00.0", "0000:04:00.0", "0000:06:00.0"}) {
    const RankGpu gpu{.rank = rank,
                      .device = rank,
                      .kind = gpu::Kind::Cuda,
                      .bus_id = bus_id,
                      .compute_capability = 90};
    ++rank;
    ASSERT_TRUE(merge(whole, detect(root_, "here", gpu, ports)).is_ok());
  }
  ASSERT_EQ(whole.cpus.size(), 2u);
  EXPECT_EQ(whole.cpus[1].vendor, "GenuineIntel");
  EXPECT_EQ(whole.cpus[1].model, 143);
  EXPECT_EQ(whole.cpus[1].affinity, "ffff0000");
  ASSERT_EQ(whole.cpus[1].below.size(), 1u);
  EXPECT_EQ(whole.cpus[1].below[0].bus_id, "0000:01:00.0");
  EXPECT_EQ(whole.cpus[1].below[0].below.size(), 3u);
  const Graph graph = Graph::make(std::move(whole)).take();
  EXPECT_EQ(graph.distance(0, 1), PathType::PIX);
  EXPECT_EQ(graph.distance(0, 2), PathType::SYS);
  ASSERT_EQ(graph.nets().size(), 2u);
  EXPECT_EQ(graph.path(graph.gpu_of_rank(0), graph.nets()[0]).type, PathType::PIX);
  EXPECT_EQ(graph.nodes()[static_cast<size_t>(graph.nets()[1])].name, "veth");
  EXPECT_NEAR(graph.path(graph.gpu_of_rank(0), graph.nets()[0]).bandwidth, 25.0 / 8, 1e-9);
}

TEST_F(FakeSystem, PortsOfInfiniBandAreWhereTheirDevicesAre) {
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:04.0", "0000:03:00.0"}, "0x030200", 0);
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:08.0", "0000:04:00.0"}, "0x020700", 0);
  add({"0000:80:01.0", "0000:81:00.0", "0000:82:04.0", "0000:83:00.0"}, "0x030200", 1);
  fs::create_directories(root_ + "/sys/class/infiniband/mlx5_0");
  fs::create_symlink(root_ + "/sys/bus/pci/devices/0000:04:00.0",
                     root_ + "/sys/class/infiniband/mlx5_0/device");
  const std::vector<Port> ports{{"mlx5_0", 400'000, "mlx5_0"}, {"mlx5_0:2", 400'000, "mlx5_0"}};
  Description whole;
  int rank = 0;
  for (const char* bus_id : {"0000:03:00.0", "0000:83:00.0"}) {
    const RankGpu gpu{.rank = rank, .device = rank, .kind = gpu::Kind::Cuda, .bus_id = bus_id};
    ++rank;
    ASSERT_TRUE(merge(whole, detect(root_, "here", gpu, ports)).is_ok());
  }
  const Graph graph = Graph::make(std::move(whole)).take();
  ASSERT_EQ(graph.nets().size(), 2u);
  for (const int net : graph.nets()) {
    EXPECT_EQ(graph.path(graph.gpu_of_rank(0), net).type, PathType::PIX);
    EXPECT_EQ(graph.path(graph.gpu_of_rank(1), net).type, PathType::SYS);
  }
  EXPECT_EQ(nearest_nets(graph, graph.gpu_of_rank(0)), graph.nets());
}

// As on virtual machines, whose system shows no switches: the provider's file tells of them, and of
// GPUs and network devices only that they are there.
TEST_F(FakeSystem, CompletesFilesThatTellOfDevicesWithoutWhatTheyAre) {
  add({"0001:00:00.0"}, "0x030200", 0);
  add({"0002:00:00.0"}, "0x030200", 0);
  add({"0003:00:00.0"}, "0x030200", 1);
  add({"0101:00:00.0"}, "0x020700", 0);
  fs::create_directories(root_ + "/sys/class/net/ib0");
  fs::create_symlink(root_ + "/sys/bus/pci/devices/0101:00:00.0",
                     root_ + "/sys/class/net/ib0/device");
  const std::vector<Port> ports{{"ib0", 200'000}, {"eth0", 40'000}};
  const Graph graph = graph_of_file(
      "<system version='1'><cpu numaid='0' arch='x86_64' vendor='AuthenticAMD' familyid='23'>"
      "<pci busid='ffff:ff:01.0' class='0x060400' link_speed='16.0 GT/s PCIe' link_width='16'>"
      "<pci busid='0001:00:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'/>"
      "<pci busid='0101:00:00.0' class='0x020700' link_speed='16.0 GT/s PCIe' link_width='16'/>"
      "<pci busid='0002:00:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'/>"
      "</pci></cpu><cpu numaid='1' arch='x86_64' vendor='AuthenticAMD' familyid='23'>"
      "<pci busid='ffff:ff:02.0' class='0x060400' link_speed='16.0 GT/s PCIe' link_width='16'>"
      "<pci busid='0003:00:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'/>"
      "</pci></cpu></system>",
      {"0001:00:00.0", "0002:00:00.0", "0003:00:00.0"}, ports);
  EXPECT_EQ(graph.distance(0, 1), PathType::PIX);
  EXPECT_EQ(graph.distance(0, 2), PathType::SYS);
  EXPECT_EQ(graph.nodes()[static_cast<size_t>(graph.gpu_of_rank(2))].gpu->compute_capability, 90);
  ASSERT_EQ(graph.nets().size(), 2u);
  EXPECT_EQ(graph.nodes()[static_cast<size_t>(graph.nets()[0])].name, "ib0");
  EXPECT_EQ(graph.path(graph.gpu_of_rank(1), graph.nets()[0]).type, PathType::PIX);
  EXPECT_EQ(graph.path(graph.gpu_of_rank(1), graph.nets()[1]).type, PathType::PHB);
}

// The system tells where the devices are: below a switch of the file, or one that it lacks.
TEST_F(FakeSystem, CompletesFilesThatHaveNoGpus) {
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:04.0", "0000:03:00.0"}, "0x030200", 0);
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:08.0", "0000:04:00.0"}, "0x030200", 0);
  add({"0000:80:01.0", "0000:81:00.0", "0000:82:04.0", "0000:83:00.0"}, "0x030200", 1);
  add({"0000:80:02.0", "0000:91:00.0", "0000:92:04.0", "0000:93:00.0"}, "0x030200", 2);
  add({"0000:00:01.0", "0000:01:00.0", "0000:02:0c.0", "0000:05:00.0"}, "0x020000", 0);
  fs::create_directories(root_ + "/sys/class/net/eth1");
  fs::create_symlink(root_ + "/sys/bus/pci/devices/0000:05:00.0",
                     root_ + "/sys/class/net/eth1/device");
  const std::vector<Port> ports{{"eth0", 10'000}, {"eth1", 100'000}};
  const Graph graph = graph_of_file(
      "<system version='1'><cpu numaid='0' arch='x86_64' vendor='GenuineIntel'>"
      "<pci busid='0000:01:00.0' class='0x060400' link_speed='32.0 GT/s PCIe' link_width='16'/>"
      "<nic><net name='eth0' dev='1' speed='25000'/></nic></cpu>"
      "<cpu numaid='1' arch='x86_64' vendor='GenuineIntel'/></system>",
      {"0000:03:00.0", "0000:04:00.0", "0000:83:00.0", "0000:93:00.0"}, ports);
  EXPECT_EQ(graph.distance(0, 1), PathType::PIX);
  EXPECT_EQ(graph.distance(0, 2), PathType::SYS);
  EXPECT_EQ(graph.distance(2, 3), PathType::SYS);
  ASSERT_EQ(graph.nets().size(), 2u);
  const Node& of_file = graph.nodes()[static_cast<size_t>(graph.nets()[0])];
  const Node& added = graph.nodes()[static_cast<size_t>(graph.nets()[1])];
  EXPECT_EQ(of_file.name, "eth0");
  EXPECT_EQ(of_file.net->speed, 25'000);
  EXPECT_EQ(added.name, "eth1");
  EXPECT_EQ(added.net->device, 2);  // the file has 1 for another
  EXPECT_EQ(graph.path(graph.gpu_of_rank(0), graph.nets()[1]).type, PathType::PIX);
}

TEST_F(FakeSystem, TellsHowFarDevicesAreApart) {
  add({"0000:17:01.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"}, "0x030200", 0);
  add({"0000:17:01.0", "0000:18:00.0", "0000:19:01.0", "0000:1b:00.0"}, "0x030200", 0);
  add({"0000:17:01.0", "0000:18:00.0", "0000:19:02.0", "0000:1c:00.0", "0000:1d:00.0",
       "0000:1e:00.0"},
      "0x030200", 0);
  add({"0000:17:03.0", "0000:1f:00.0"}, "0x030200", 0);
  add({"0000:97:01.0", "0000:98:00.0"}, "0x030200", 1);
  const auto distance = [&](const char* other) {
    return pci_distance(root_, "0000:1a:00.0", other);
  };
  EXPECT_EQ(distance("0000:1a:00.0"), PathType::LOC);
  EXPECT_EQ(distance("0000:1b:00.0"), PathType::PIX);
  EXPECT_EQ(distance("0000:1e:00.0"), PathType::PXB);
  EXPECT_EQ(distance("0000:1f:00.0"), PathType::PHB);
  EXPECT_EQ(distance("0000:98:00.0"), PathType::SYS);
  EXPECT_EQ(distance("0000:aa:00.0"), PathType::SYS);  // which the system does not have
}

TEST_F(FakeSystem, MayTellNothing) {
  const RankGpu gpu{.rank = 0,
                    .device = 0,
                    .kind = gpu::Kind::Cuda,
                    .bus_id = "0000:03:00.0",
                    .compute_capability = 90};
  const std::vector<Port> ports{{"eth0"}};
  const Graph graph = Graph::make(detect(root_, "here", gpu, ports)).take();
  EXPECT_GE(graph.gpu_of_rank(0), 0);
  EXPECT_EQ(graph.nets().size(), 1u);
}

TEST_F(FakeSystem, MayHaveAFileOfItsProvider) {
  EXPECT_EQ(providers_file(root_), "");
  write("/var/run/nvidia-topologyd/virtualTopology.xml", "<system version=\"1\"/>");
  EXPECT_EQ(providers_file(root_), root_ + "/var/run/nvidia-topologyd/virtualTopology.xml");
}

TEST(ThisMachine, HasVirtualGpusAtItsProcessor) {
  Description whole;
  for (int rank = 0; rank < 2; ++rank) {
    const RankGpu gpu{.rank = rank,
                      .device = rank,
                      .bus_id = "f000:0" + std::to_string(rank) + ":00.0",
                      .compute_capability = 90};
    ASSERT_TRUE(merge(whole, detect("/", "here", gpu, {})).is_ok());
  }
  EXPECT_EQ(Graph::make(std::move(whole)).take().distance(0, 1), PathType::PHB);
}

}  // namespace
}  // namespace niccolite::topology
