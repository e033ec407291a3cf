// Graph: the machines of a communicator as nodes and links with bandwidths, and the best path
// between any two of them. Made of a Description; equal on all ranks when that is. Source of path
// types, constants and rules: NCCL's (its guide, NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL), so that
// people find the distances that they know from its logs and from `nvidia-smi topo -m`.
// Thread safety: as for any value.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "topology/description.h"

namespace niccolite::topology {

/// How far two devices are apart, nearest first.
enum class PathType : uint8_t {
  LOC,  // the same device
  NVL,  // NVLink, directly or through a switch
  NVB,  // NVLink through another GPU
  C2C,  // from chip to chip
  PIX,  // at most one PCI switch
  PXB,  // several PCI switches, no host bridge
  P2C,  // chip to chip to the CPU, then PCI: of a GPU and a network device
  PXN,  // NVLink to another GPU, then that one's network device
  PHB,  // a host bridge
  SYS,  // from NUMA node to NUMA node
  NET,  // the network between machines
  DIS,  // not at all
};
const char* name_of(PathType type);
/// Parses a value of NCCL_P2P_LEVEL: a name up to SYS, or one of its older numbers 0 to 4.
/// InvalidUsage for others.
Result<PathType> path_type_from(std::string_view text);

enum class NodeKind : uint8_t { Cpu, Pci, NvSwitch, Gpu, Net };

struct Node {
  NodeKind kind = NodeKind::Cpu;
  int host = 0;              // number of the machine
  std::string name{};        // "numa 0", bus id, "eth0"
  const Gpu* gpu = nullptr;  // the graph's own copy, of a GPU
  const Net* net = nullptr;  // of a network device
  int numa = 0;
};

struct Path {
  PathType type = PathType::DIS;
  double bandwidth = 0;  // GB/s, of the narrowest link
  int links = 0;
};

class Graph {
 public:
  /// InvalidUsage when NVLinks lead to unknown GPUs.
  static Result<Graph> make(Description description);
  Graph(Graph&&) = default;

  const Description& description() const { return *description_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  int hosts() const { return hosts_; }

  /// Nodes of GPUs: with a rank, ascending by rank; then without a rank, in the order of the tree.
  const std::vector<int>& gpus() const { return gpus_; }
  /// Nodes of network devices: by host, then by device number.
  const std::vector<int>& nets() const { return nets_; }
  /// The node of a rank's GPU; -1: it has none here.
  int gpu_of_rank(int rank) const;

  const Path& path(int from, int to) const {
    return paths_[static_cast<size_t>(from) * nodes_.size() + static_cast<size_t>(to)];
  }
  /// Between the GPUs of two ranks; DIS when one is not in the graph.
  PathType distance(int rank, int other) const;

 private:
  struct Link {
    int to;
    enum Kind : uint8_t { NvLink, ChipToChip, Bus, Socket } kind;
    double bandwidth;
  };

  Graph() = default;
  int add(Node node);
  void connect(int a, int b, Link::Kind kind, double bandwidth);
  void add_devices(const std::vector<Pci>& devices, int above, int cpu);
  void add_net(const Net& net, int above, double bandwidth, int cpu);
  void connect_sockets();
  Status connect_nvlinks();
  void find_paths(int from);
  void connect_hosts();

  std::unique_ptr<Description> description_;  // stays where it is: nodes point into it
  std::vector<Node> nodes_{};
  std::vector<std::vector<Link>> links_;  // by node
  std::vector<int> cpu_of_{};             // by node: the node of its CPU
  std::vector<const Cpu*> cpus_;          // by node; null of others
  std::vector<int> gpus_{};
  std::vector<int> nets_{};
  std::vector<Path> paths_{};  // from, to
  int hosts_ = 0;
};

}  // namespace niccolite::topology
