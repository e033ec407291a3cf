// Topology files: what is written is read again; what is wrong is named.
#include "topology/xml.h"

#include <gmock/gmock.h>

#include "tests/topology/machines.h"
#include "topology/detect.h"

namespace niccolite::topology {
namespace {

using testing::HasSubstr;

TEST(TopologyFiles, SurviveReadingAndWriting) {
  for (const char* name : {"nvswitch_8x8", "pcie_4", "two_sockets"}) {
    const std::string once = write_xml(description_of(name));
    EXPECT_EQ(write_xml(read_xml(once, name).take()), once);
    EXPECT_THAT(once, HasSubstr("<gpu dev=\"3\""));
  }
  EXPECT_THAT(write_xml(description_of("two_sockets")),
              HasSubstr("<nvlink target=\"0000:84:00.0\" count=\"2\""));
}

TEST(TopologyFiles, MayHaveWhatNobodyKnows) {
  const auto read = read_xml(
      "<?xml version='1.0'?><!-- x --><system version='1' name='x'><cpu numaid='-1' "
      "new='1'><thing><pci/></thing>"
      "<pci busid='0000:AB:00.0' class='0x030000' link_width='0x10'><gpu dev='0' sm='90' "
      "mlopart='1'/>"
      "<pcilink target='0000:01:00.0'/></pci><nic><net name='a'/><net name='b' dev='1' coll='1' "
      "net='0'/>"
      "<net name='c' dev='2' speed='-1'/></nic></cpu></system>",
      "x");
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  const Cpu& cpu = read.value().cpus[0];
  EXPECT_EQ(cpu.below[0].bus_id, "0000:ab:00.0");
  EXPECT_EQ(cpu.below[0].link_width, 16);
  ASSERT_EQ(cpu.nets.size(), 1u);
  EXPECT_EQ(cpu.nets[0].name, "c");
}

struct Wrong {
  const char* text;
  const char* named;
};

TEST(TopologyFiles, ThatAreWrongAreNamed) {
  const Wrong all[] = {
      {"", "f.xml is no XML"},
      {"<system version='1'>\n<cpu numaid='0'>", "f.xml is no XML"},
      {"<graphs/>", "has no element <system>"},
      {"<system><cpu/></system>", "has version \"\" of <system>; version 1 is known"},
      {"<system version='2'/>", "has version \"2\""},
      {"<system version='1'/>", "has no element <cpu>"},
      {"<system version='1'><cpu numaid='x'/></system>",
       "<cpu> has numaid=\"x\", which is no number"},
      {"<system version='1'><cpu>\n  <pci class='0x02'/></cpu></system>",
       "f.xml, line 2, column 4: <pci> has no busid"},
      {"<system version='1'><cpu><pci busid='0'/></cpu><cpu><pci busid='0'/></cpu></system>",
       "has the bus id 0, which another has, too"},
      {"<system version='1'><cpu><pci busid='0'><gpu dev='1'><nvlink "
       "count='1'/></gpu></pci></cpu></system>",
       "<nvlink> has no target"},
  };
  for (const Wrong& wrong : all)
    EXPECT_THAT(read_xml(wrong.text, "f.xml").status().message(), HasSubstr(wrong.named));
  std::string deep = "<system version='1'><cpu>";
  for (int i = 0; i < 40; ++i) deep += "<pci busid='" + std::to_string(i) + "'>";
  for (int i = 0; i < 40; ++i) deep += "</pci>";
  EXPECT_THAT(read_xml(deep + "</cpu></system>", "f.xml").status().message(),
              HasSubstr("nested over 32 deep"));
  EXPECT_THAT(load_xml("/none/such.xml").status().message(),
              HasSubstr("/none/such.xml cannot be read"));
}

TEST(TopologyFiles, AreOfTheMachineOrRefused) {
  Description description = description_of("pcie_4");
  RankGpu gpu{.rank = 7,
              .device = 2,
              .kind = gpu::Kind::Cuda,
              .bus_id = "0000:43:00.0",
              .compute_capability = 80};
  const Description found = detect("/none/such", "here", gpu, {});
  ASSERT_TRUE(place_rank(description, found, "here", gpu, "f.xml").is_ok());
  trim(description);
  int gpus = 0;
  for_each_gpu(description, [&](Cpu& cpu, Pci& pci, Gpu& of_file) {
    ++gpus;
    EXPECT_EQ(of_file.rank, 7);
    EXPECT_EQ(pci.bus_id, "0000:43:00.0");
    EXPECT_EQ(cpu.host, "here");
  });
  EXPECT_EQ(gpus, 1);

  // A virtual GPU takes the place of the one of its number.
  description = description_of("pcie_4");
  gpu.bus_id = "0000:99:00.0";
  gpu.kind = gpu::Kind::Virtual;
  ASSERT_TRUE(place_rank(description, {}, "here", gpu, "f.xml").is_ok());
  EXPECT_EQ(description.cpus[0].below[0].below[1].gpu->rank, 7);

  description = description_of("pcie_4");
  gpu.device = 9;
  const std::string why = place_rank(description, {}, "here", gpu, "f.xml").message();
  EXPECT_THAT(
      why,
      HasSubstr(
          "NCCL_TOPO_FILE=f.xml does not fit this machine: rank 7 uses GPU 9 at 0000:99:00.0"));
  EXPECT_THAT(why, HasSubstr("0000:02:00.0, 0000:03:00.0, 0000:42:00.0, 0000:43:00.0"));
}

// Which is what NCCL_TOPO_DUMP_FILE writes of a job: devices of two machines have the same bus ids.
TEST(TopologyFiles, OfSeveralMachinesAreReadAsThatOfOne) {
  Description dump;
  for (const int machine : {0, 1}) {
    Description one = description_of("pcie_4");
    for (Cpu& cpu : one.cpus) {
      cpu.host = "host" + std::to_string(machine);
      cpu.model = machine;
    }
    for_each_gpu(one, [&](Cpu&, Pci&, Gpu& gpu) { gpu.rank += 4 * machine; });
    ASSERT_TRUE(merge(dump, one).is_ok());
  }
  const std::string text = write_xml(dump);
  struct Case {
    const char* host;
    int model;
  };
  for (const gpu::Kind kind : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const Case& c : {Case{"host1", 1}, Case{"host0", 0}, Case{"another", 0}}) {
      SCOPED_TRACE(c.host);
      Description description = read_xml(text, "dump.xml").take();
      const RankGpu gpu{
          .rank = 5, .device = 2, .kind = kind, .bus_id = "0000:43:00.0", .compute_capability = 80};
      const Description found = detect("/none/such", c.host, gpu, {});
      ASSERT_TRUE(place_rank(description, found, c.host, gpu, "dump.xml").is_ok());
      trim(description);
      ASSERT_TRUE(read_xml(write_xml(description), "what is told").is_ok());
      int gpus = 0;
      for_each_gpu(description, [&](Cpu& cpu, Pci& pci, Gpu& of_file) {
        ++gpus;
        EXPECT_EQ(cpu.host, c.host);
        EXPECT_EQ(cpu.model, c.model);
        EXPECT_EQ(pci.bus_id, "0000:43:00.0");
        EXPECT_EQ(of_file.rank, 5);
      });
      EXPECT_EQ(gpus, 1);
    }
}

// The machine that has the GPU is not called as in the dump.
TEST(TopologyFiles, OfSeveralMachinesAreReadAsThatWithTheGpu) {
  Description description =
      read_xml(
          "<system version='1'>"
          "<cpu numaid='0' host_hash='a'><pci busid='0000:01:00.0'><gpu dev='0'/></pci></cpu>"
          "<cpu numaid='0' host_hash='b'><pci busid='0000:02:00.0'><gpu dev='0'/></pci></cpu>"
          "</system>",
          "dump.xml")
          .take();
  const RankGpu gpu{.device = 1, .bus_id = "0000:02:00.0"};
  ASSERT_TRUE(place_rank(description, {}, "here", gpu, "dump.xml").is_ok());
  ASSERT_EQ(description.cpus.size(), 1u);
  EXPECT_EQ(description.cpus[0].host, "here");
  EXPECT_EQ(description.cpus[0].below[0].gpu->rank, 0);
}

}  // namespace
}  // namespace niccolite::topology
