// What this machine is made of, as far as one rank is concerned: its GPU with all PCI switches
// above it, its NUMA node, its NVLinks (NVML, opened at run time), and the network devices that
// carry data. Read from /sys and /proc, as the system's other tools do.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/machine.h"
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

/// An interface that carries data.
struct Port {
  std::string name{};
  int speed = 0;  // Mbit/s (base/interfaces.h: link_speed()); 0: unknown
};

/// `root` stands before /sys and /proc: tests have trees of their own. `host` tells the machine
/// from others. `ports` are numbered in their order. What the system does not tell is left out; the
/// GPU is always there.
Description detect(const std::string& root, const std::string& host, const RankGpu& gpu,
                   std::span<const Port> ports);

/// How far two devices of the PCI tree are apart, told by bus ids; SYS where the system does not
/// know one of them.
PathType pci_distance(const std::string& root, const std::string& bus_id, const std::string& other);

/// The rank's part of a description that a file gives (NCCL_TOPO_FILE, whose name is `origin`): the
/// CPUs of one host, with the rank at its GPU. Of the hosts in a dump of several it is the one that
/// is called `host`, else the first with that GPU.
///
/// A GPU is the PCI device of its bus id. Files of cloud vendors tell switches, and of GPUs at most
/// that there are such devices: as with NCCL, what detect() has `found` completes a file.
/// A virtual GPU, which has a bus id of its own making, is that of its bus id, else of its number,
/// and a file of another machine tells all. InvalidUsage when there is none: which there are.
Status place_rank(Description& description, const Description& found, const std::string& host,
                  const RankGpu& gpu, const std::string& origin);

/// NVLinks of a GPU, as NVML tells; none where there is no NVML. `class_of` a bus id: its PCI
/// class.
std::vector<NvLink> find_nvlinks(const std::string& bus_id, int compute_capability,
                                 const std::function<std::string(const std::string&)>& class_of);

/// Which GPU of the machine NVML and nvidia-smi call it; nothing where there is no NVML.
std::optional<int> nvml_index(const std::string& bus_id);

/// The file in NCCL's form by which providers of virtual machines tell how devices are connected
/// ("/var/run/nvidia-topologyd/virtualTopology.xml"); empty: there is none.
std::string providers_file(const std::string& root);

}  // namespace niccolite::topology
