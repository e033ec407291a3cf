// Detects the part of this machine that concerns one rank: its GPU with all PCI switches above it,
// its NUMA node, its NVLinks (NVML, opened at run time), and the network devices that carry data.
// Reads /sys and /proc, as the system's other tools do.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/devices.h"
#include "topology/description.h"
#include "topology/graph.h"

namespace niccolite::topology {

struct RankGpu {
  int rank = 0;
  int device = 0;  // number in its process
  gpu::Kind kind = gpu::Kind::Virtual;
  std::string bus_id{};
  int compute_capability = 0;
};

/// An interface, or a port of InfiniBand or RoCE, that carries data.
struct Port {
  std::string name{};
  int speed = 0;         // Mbit/s; 0: unknown
  std::string device{};  // of the port, as /sys/class/infiniband has it; empty: an interface
};

/// Detects the machine. `root` stands before /sys and /proc: tests have trees of their own. `host`
/// tells the machine from others. `ports` are numbered in their order. Facts that the system does
/// not tell are left out; the GPU is always there.
Description detect(const std::string& root, const std::string& host, const RankGpu& gpu,
                   std::span<const Port> ports);

/// How far two devices of the PCI tree are apart, told by bus ids; SYS where the system does not
/// know one of them.
PathType pci_distance(const std::string& root, const std::string& bus_id, const std::string& other);

/// Reduces a file's description to the rank's part (NCCL_TOPO_FILE, whose name is `origin`): the
/// CPUs of one host, with the rank at its GPU. In a dump of several hosts it is the host with the
/// name `host`, or else the first with that GPU.
///
/// A GPU is found at the PCI device of its bus id. Files of cloud vendors describe switches, and at
/// most the existence of GPUs; as with NCCL, the description `found` of detect() completes a file.
/// A virtual GPU has an invented bus id: it is found by this id, or else by its number, and a file
/// of another machine is complete by itself. InvalidUsage when there is no such GPU, with the GPUs
/// that there are.
Status place_rank(Description& description, const Description& found, const std::string& host,
                  const RankGpu& gpu, const std::string& origin);

/// Returns the NVLinks of a GPU, as NVML tells them; none without NVML. `class_of` a bus id: its
/// PCI class.
std::vector<NvLink> find_nvlinks(const std::string& bus_id, int compute_capability,
                                 const std::function<std::string(const std::string&)>& class_of);

/// Returns the GPU's number in NVML and nvidia-smi; nothing without NVML.
std::optional<int> nvml_index(const std::string& bus_id);

/// The file in NCCL's form by which providers of virtual machines tell how devices are connected
/// ("/var/run/nvidia-topologyd/virtualTopology.xml"); empty: there is none.
std::string providers_file(const std::string& root);

}  // namespace niccolite::topology
