#include "topology/graph.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>

namespace niccolite::topology {
namespace {

constexpr std::array kNames = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                               "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
static_assert(kNames.size() == static_cast<size_t>(PathType::DIS) + 1);

// GB/s in one direction, as NCCL has them.
constexpr double kLocal = 5000;
constexpr double kNetOfUnknownSpeed = 10'000;  // Mbit/s

double nvlink_bandwidth(int compute_capability) {
  if (compute_capability >= 100) return 40.1;
  if (compute_capability >= 90) return 20.6;
  if (compute_capability == 86) return 12;
  if (compute_capability >= 70) return 20;
  return compute_capability >= 60 ? 18 : 20;
}

double socket_bandwidth(const Cpu& cpu) {
  if (cpu.arch == "arm64") return 6;
  if (cpu.arch == "ppc64") return 32;
  if (cpu.vendor == "AuthenticAMD") return 16;
  if (cpu.vendor == "GenuineIntel") {
    if (cpu.model >= 0xcf) return 40;
    if (cpu.model >= 0x8f) return 22;
    return cpu.model >= 0x55 ? 10 : 6;
  }
  return kLocal;
}

// Lanes times their rate; an unknown link counts as 16 lanes of 8 GT/s.
double bus_bandwidth(const Pci& pci) {
  constexpr int kLanes = 16;
  const double rate = std::strtod(pci.link_speed.c_str(), nullptr);  // "16.0 GT/s PCIe"
  const double units = rate >= 64   ? 480
                       : rate >= 32 ? 240
                       : rate >= 16 ? 120
                       : rate >= 8  ? 60
                       : rate >= 5  ? 30
                       : rate > 0   ? 15
                                    : 60;
  return (pci.link_width > 0 ? pci.link_width : kLanes) * units / 80;
}

bool is_nv_switch(const NvLink& link) {
  return link.target_class.starts_with("0x0680") && !link.target_class.starts_with("0x068001");
}

bool is_better(const Path& a, const Path& b) {
  if (a.type != b.type) return a.type < b.type;
  if (a.bandwidth != b.bandwidth) return a.bandwidth > b.bandwidth;
  return a.links < b.links;
}

}  // namespace

const char* name_of(PathType type) { return kNames[static_cast<size_t>(type)]; }

Result<PathType> path_type_from(std::string_view text) {
  for (size_t i = 0; i <= static_cast<size_t>(PathType::SYS); ++i)
    if (text == kNames[i]) return static_cast<PathType>(i);
  constexpr std::array kOld = {PathType::LOC, PathType::PIX, PathType::PXB, PathType::PHB,
                               PathType::SYS};
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos) {
    const unsigned long number = std::strtoul(std::string(text).c_str(), nullptr, 10);
    return kOld[std::min<size_t>(number, kOld.size() - 1)];
  }
  return Status::invalid_usage(
      "\"{}\" is no distance: LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS", text);
}

Result<Graph> Graph::make(Description description) {
  Graph graph;
  graph.description_ = std::make_unique<Description>(std::move(description));
  std::map<std::string, int> hosts;
  for (const Cpu& cpu : graph.description_->cpus) {
    const int host = hosts.emplace(cpu.host, static_cast<int>(hosts.size())).first->second;
    const int node = graph.add({.kind = NodeKind::Cpu,
                                .host = host,
                                .name = fmt::format("numa {}", cpu.numa),
                                .numa = cpu.numa});
    graph.cpu_of_[static_cast<size_t>(node)] = node;
    graph.cpus_[static_cast<size_t>(node)] = &cpu;
    graph.add_devices(cpu.below, node, node);
    for (const Net& net : cpu.nets) graph.add_net(net, node, kLocal, node);
  }
  graph.hosts_ = static_cast<int>(hosts.size());
  const auto by_rank = [&](int node) {
    const int rank = graph.nodes_[static_cast<size_t>(node)].gpu->rank;
    return rank < 0 ? INT32_MAX : rank;
  };
  std::ranges::stable_sort(graph.gpus_, {}, by_rank);
  std::ranges::stable_sort(graph.nets_, {}, [&](int node) {
    const Node& of = graph.nodes_[static_cast<size_t>(node)];
    return std::pair(of.host, of.net->device);
  });
  graph.connect_sockets();
  TRY(graph.connect_nvlinks());
  graph.paths_.resize(graph.nodes_.size() * graph.nodes_.size());
  for (size_t node = 0; node < graph.nodes_.size(); ++node)
    graph.find_paths(static_cast<int>(node));
  graph.connect_hosts();
  return graph;
}

int Graph::add(Node node) {
  nodes_.push_back(std::move(node));
  links_.emplace_back();
  cpu_of_.push_back(-1);
  cpus_.push_back(nullptr);
  return static_cast<int>(nodes_.size()) - 1;
}

void Graph::connect(int a, int b, Link::Kind kind, double bandwidth) {
  links_[static_cast<size_t>(a)].push_back({.to = b, .kind = kind, .bandwidth = bandwidth});
  links_[static_cast<size_t>(b)].push_back({.to = a, .kind = kind, .bandwidth = bandwidth});
}

void Graph::add_net(const Net& net, int above, double bandwidth, int cpu) {
  const Node& of = nodes_[static_cast<size_t>(cpu)];
  const int node =
      add({.kind = NodeKind::Net, .host = of.host, .name = net.name, .net = &net, .numa = of.numa});
  cpu_of_[static_cast<size_t>(node)] = cpu;
  nets_.push_back(node);
  const double wire = (net.speed > 0 ? net.speed : kNetOfUnknownSpeed) / 8000;
  connect(node, above, Link::Bus, std::min(bandwidth, wire));
}

void Graph::add_devices(const std::vector<Pci>& devices, int above, int cpu) {
  for (const Pci& pci : devices) {
    const double bandwidth = bus_bandwidth(pci);
    // Leaves stand for their own PCI device.
    for (const Net& net : pci.nets) add_net(net, above, bandwidth, cpu);
    if (!pci.gpu && pci.below.empty()) continue;
    const Node& of = nodes_[static_cast<size_t>(cpu)];
    const int node = add({.kind = pci.gpu ? NodeKind::Gpu : NodeKind::Pci,
                          .host = of.host,
                          .name = pci.bus_id,
                          .gpu = pci.gpu ? &*pci.gpu : nullptr,
                          .numa = of.numa});
    cpu_of_[static_cast<size_t>(node)] = cpu;
    connect(node, above, Link::Bus, bandwidth);
    if (pci.gpu) {
      gpus_.push_back(node);
      if (pci.gpu->c2c)
        connect(node, cpu, Link::ChipToChip,
                pci.gpu->c2c->count * pci.gpu->c2c->megabytes / 1000.0);
    }
    add_devices(pci.below, pci.gpu ? above : node, cpu);
  }
}

void Graph::connect_sockets() {
  for (size_t a = 0; a < nodes_.size(); ++a)
    for (size_t b = a + 1; b < nodes_.size(); ++b)
      if (cpus_[a] != nullptr && cpus_[b] != nullptr && nodes_[a].host == nodes_[b].host)
        connect(static_cast<int>(a), static_cast<int>(b), Link::Socket,
                socket_bandwidth(*cpus_[a]));
}

Status Graph::connect_nvlinks() {
  std::map<std::pair<int, std::string>, int> gpu_at;  // by host and bus id
  for (const int gpu : gpus_)
    gpu_at.emplace(
        std::pair(nodes_[static_cast<size_t>(gpu)].host, nodes_[static_cast<size_t>(gpu)].name),
        gpu);
  std::map<int, int> switch_of;  // by host: all of its switches are one
  for (const int node : gpus_) {
    const auto at = static_cast<size_t>(node);
    const double each = nvlink_bandwidth(nodes_[at].gpu->compute_capability);
    for (const NvLink& link : nodes_[at].gpu->nvlinks) {
      const int host = nodes_[at].host;
      const double bandwidth = link.count * each;
      if (is_nv_switch(link)) {
        const auto [found, is_new] = switch_of.try_emplace(host, -1);
        if (is_new)
          found->second = add({.kind = NodeKind::NvSwitch, .host = host, .name = "NVSwitch"});
        connect(node, found->second, Link::NvLink, bandwidth);
      } else if (link.target_class.starts_with("0x068001")) {
        connect(node, cpu_of_[at], Link::NvLink, bandwidth);
      } else if (const auto peer = gpu_at.find({host, link.target}); peer != gpu_at.end()) {
        // Both ends tell of it.
        links_[at].push_back({.to = peer->second, .kind = Link::NvLink, .bandwidth = bandwidth});
      } else if (!link.target_class.starts_with("0x03")) {
        return Status::invalid_usage(
            "GPU {} has an NVLink to {}, which is neither a GPU nor a switch (tclass \"{}\")",
            nodes_[at].name, link.target, link.target_class);
      }
    }
  }
  return {};
}

// Label correction: a path is extended as long as that makes some other one better.
void Graph::find_paths(int from) {
  Path* const best = &paths_[static_cast<size_t>(from) * nodes_.size()];
  best[from] = {.type = PathType::LOC, .bandwidth = kLocal, .links = 0};
  std::vector<bool> begins_by_chip(nodes_.size(), false);  // the best path leaves by C2C
  std::deque<int> open{from};
  while (!open.empty()) {
    const auto at = static_cast<size_t>(open.front());
    open.pop_front();
    const Node& node = nodes_[at];
    if (node.kind == NodeKind::Net && static_cast<int>(at) != from) continue;
    for (const Link& link : links_[at]) {
      const Node& next = nodes_[static_cast<size_t>(link.to)];
      PathType step = PathType::PIX;
      bool by_chip = begins_by_chip[at];
      switch (link.kind) {
        case Link::NvLink:
          step = PathType::NVL;
          break;
        case Link::ChipToChip:
          step = PathType::C2C;
          by_chip |= static_cast<int>(at) == from;
          break;
        case Link::Socket:
          step = PathType::SYS;
          break;
        case Link::Bus:
          if (node.kind == NodeKind::Cpu || next.kind == NodeKind::Cpu)
            step = PathType::PHB;
          else if (node.kind == NodeKind::Pci && next.kind == NodeKind::Pci)
            step = PathType::PXB;
          break;
      }
      if (node.kind == NodeKind::Gpu && static_cast<int>(at) != from) {
        // Through another GPU by NVLink alone, and through one only.
        if (link.kind != Link::NvLink || next.kind != NodeKind::Gpu ||
            best[at].type != PathType::NVL)
          continue;
        step = PathType::NVB;
      }
      Path path{.type = std::max(best[at].type, step),
                .bandwidth = std::min(best[at].bandwidth, link.bandwidth),
                .links = best[at].links + 1};
      if (by_chip && path.type == PathType::PHB && next.kind == NodeKind::Net)
        path.type = PathType::P2C;
      if (!is_better(path, best[link.to])) continue;
      best[link.to] = path;
      begins_by_chip[static_cast<size_t>(link.to)] = by_chip;
      open.push_back(link.to);
    }
  }
}

// Connects machines by the best network device of each end.
void Graph::connect_hosts() {
  std::vector<double> wire(nodes_.size(), 0);
  for (size_t node = 0; node < nodes_.size(); ++node)
    for (const int net : nets_)
      if (nodes_[static_cast<size_t>(net)].host == nodes_[node].host)
        wire[node] = std::max(wire[node], path(static_cast<int>(node), net).bandwidth);
  for (size_t a = 0; a < nodes_.size(); ++a)
    for (size_t b = 0; b < nodes_.size(); ++b) {
      if (nodes_[a].host == nodes_[b].host || wire[a] == 0 || wire[b] == 0) continue;
      paths_[a * nodes_.size() + b] = {
          .type = PathType::NET, .bandwidth = std::min(wire[a], wire[b]), .links = 1};
    }
}

int Graph::gpu_of_rank(int rank) const {
  const auto found = std::ranges::lower_bound(gpus_, rank, {}, [&](int node) {
    const int of = nodes_[static_cast<size_t>(node)].gpu->rank;
    return of < 0 ? INT32_MAX : of;
  });
  const bool is_it =
      rank >= 0 && found != gpus_.end() && nodes_[static_cast<size_t>(*found)].gpu->rank == rank;
  return is_it ? *found : -1;
}

PathType Graph::distance(int rank, int other) const {
  const int from = gpu_of_rank(rank), to = gpu_of_rank(other);
  return from < 0 || to < 0 ? PathType::DIS : path(from, to).type;
}

}  // namespace niccolite::topology
