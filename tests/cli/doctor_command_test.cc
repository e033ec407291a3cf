// The command `niccolite doctor`, run as users run it: on this machine, and on files that stand for
// other machines.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

/// A machine's files, which go when this goes.
class Machine {
 public:
  Machine()
      : root_(std::filesystem::temp_directory_path() /
              fmt::format("niccolite_doctor_{}_{}", getpid(), ++machines_)) {
    std::filesystem::create_directories(root_);
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  Outcome examine() const {
    return testing::run_command({NICCOLITE_COMMAND, "doctor", "--files", root_.string()}, {});
  }

 private:
  static inline int machines_ = 0;
  const std::filesystem::path root_;
};

TEST(DoctorCommand, LooksAtThisMachine) {
  const Outcome outcome =
      testing::run_command({NICCOLITE_COMMAND, "doctor"}, {{"NICCOLITE_DEVICES", "virtual:3"}});
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("3 x Virtual GPU"), ContainsRegex("open files +[0-9]+"),
                    ContainsRegex("[0-9]+ faults?, [0-9]+ warnings?\n$")));
  EXPECT_EQ(outcome.errors, "");
}

TEST(DoctorCommand, NamesInterfacesThatAreNotThere) {
  const Outcome outcome = testing::run_command(
      {NICCOLITE_COMMAND, "doctor"},
      {{"NICCOLITE_DEVICES", "virtual:2"}, {"NCCL_SOCKET_IFNAME", "=nonesuch"}});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(
      outcome.output,
      ContainsRegex("fault +interfaces +NCCL_SOCKET_IFNAME==nonesuch fits none that is up"));
}

TEST(DoctorCommand, FindsNothingWrongWithAMachineInOrder) {
  const Machine machine;
  machine.write("proc/cmdline", "quiet iommu=pt\n");
  machine.write("sys/kernel/iommu_groups/0/type", "identity\n");
  machine.write("proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95\n");
  machine.write("proc/driver/nvidia-nvswitch/devices/0000:01:00.0/information", "");
  machine.write("proc/4711/comm", "nv-fabricmanage\n");
  machine.write("proc/sys/kernel/numa_balancing", "0\n");
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  machine.write(port + "state", "4: ACTIVE\n");
  machine.write(port + "link_layer", "InfiniBand\n");
  machine.write(port + "rate", "400 Gb/sec (4X NDR)\n");
  const Outcome outcome = machine.examine();
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR))"),
                    HasSubstr("by dma-buf (the open kernel module); NCCL_NET=IB with "
                              "NCCL_NET_GDR_LEVEL=PXB"),
                    ContainsRegex("fine +fabric manager +it runs"), ContainsRegex("fine +iommu"),
                    HasSubstr("0 faults, 0 warnings"),
                    ContainsRegex("note +rdma use +not used: [^\n]*\n +-> NCCL_NET=IB")));
}

TEST(DoctorCommand, FindsPeerMemory) {
  for (const char* const file :
       {"sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/nv_mem/version",
        "sys/kernel/mm/memory_peers/nv_mem_nc/version"}) {
    const Machine machine;
    machine.write("proc/driver/nvidia/version",
                  "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1\n");
    machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    machine.write(file, "1.3\n");
    EXPECT_THAT(machine.examine().output, ContainsRegex("fine +gpudirect +by nvidia_peermem; "));
  }
}

TEST(DoctorCommand, NamesEachFaultWithARemedy) {
  const Machine machine;
  machine.write("proc/cmdline", "quiet\n");
  machine.write("sys/kernel/iommu_groups/0/type", "DMA\n");
  machine.write("proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1\n");
  machine.write("proc/driver/nvidia-nvswitch/devices/0000:01:00.0/information", "");
  machine.write("proc/sys/kernel/numa_balancing", "1\n");
  machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  machine.write("sys/fs/cgroup/memory.max", "536870912\n");
  machine.write("sys/fs/cgroup/pids.max", "100\n");
  machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  const std::string port = "sys/class/infiniband/mlx5_1/ports/1/";
  machine.write(port + "state", "4: ACTIVE\n");
  machine.write(port + "link_layer", "Ethernet\n");
  machine.write(port + "gid_attrs/types/0", "IB/RoCE v1\n");
  // A bridge with ACS that redirects requests: the second of its extended capabilities.
  std::string space(4096, '\0');
  const auto put = [&](size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) space[at + i] = static_cast<char>(value >> (8 * i));
  };
  put(0x100, 0x0001 | 1u << 16 | 0x140u << 20);
  put(0x140, 0x000d | 1u << 16);
  put(0x144, 0x0004u << 16);
  machine.write("sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n");
  machine.write("sys/bus/pci/devices/0000:00:01.0/config", space);
  const Outcome outcome = machine.examine();
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  for (const char* const line :
       {"warning +iommu", "warning +acs +on at PCI bridges 0000:00:01.0", "warning +gpudirect",
        "fault +fabric manager", "warning +numa balancing", "warning +cpu governor",
        "warning +memory limit +this control group may have 512 MiB",
        "warning +threads +this control group may have 100",
        "warning +rdma ports +not active: mlx5_0:1", "fault +rdma gids +mlx5_1:1 has no GID"})
    EXPECT_THAT(outcome.output, ContainsRegex(line));
  // Each has its remedy on the next line.
  EXPECT_THAT(outcome.output,
              Not(ContainsRegex("(warning|fault) [^>]*\n(warning|fault|fine|note)")));
}

TEST(DoctorCommand, RefusesAFolderThatIsNotThere) {
  const Outcome outcome =
      testing::run_command({NICCOLITE_COMMAND, "doctor", "--files", "/nonexistent"}, {});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace niccolite
