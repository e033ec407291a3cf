#include <algorithm>

#include "topology/draw.h"
#include "topology/rails.h"
#include "topology/rings.h"

namespace niccolite::topology {
namespace {

std::string bus_text(const Pci& pci) {
  if (pci.link_speed.empty()) return "";
  return fmt::format("  {} x{}", pci.link_speed, pci.link_width);
}

std::string net_text(const Net& net) {
  return fmt::format("net {} {}{}", net.device, net.name,
                     net.speed > 0 ? fmt::format("  {} Mbit/s", net.speed) : "");
}

void add_devices(std::string& text, const std::vector<Pci>& devices, int depth) {
  const std::string indent(static_cast<size_t>(depth) * 2, ' ');
  for (const Pci& pci : devices) {
    std::string what = pci.below.empty() ? "device" : "switch";
    if (pci.gpu) {
      what = fmt::format("GPU {}", pci.gpu->device);
      if (pci.gpu->rank >= 0) what += fmt::format(" (rank {})", pci.gpu->rank);
    }
    text += fmt::format("{}{} {}{}\n", indent, pci.bus_id, what, bus_text(pci));
    if (pci.gpu)
      for (const NvLink& link : pci.gpu->nvlinks)
        text += fmt::format("{}  NVLink x{} to {}\n", indent, link.count,
                            link.target_class.starts_with("0x068000") ? "a switch" : link.target);
    for (const Net& net : pci.nets) text += fmt::format("{}  {}\n", indent, net_text(net));
    add_devices(text, pci.below, depth + 1);
  }
}

std::string label(const Node& node) {
  if (node.kind == NodeKind::Net) return node.name;
  return node.gpu->rank >= 0 ? fmt::format("rank {}", node.gpu->rank)
                             : fmt::format("GPU {}", node.gpu->device);
}

// Lines of a table, its columns right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string draw_text(const Graph& graph) {
  std::string text;
  std::string host;
  bool is_first = true;
  for (const Cpu& cpu : graph.description().cpus) {
    if ((is_first || cpu.host != host) && graph.hosts() > 1)
      text += fmt::format("machine {}\n", cpu.host);
    host = cpu.host;
    is_first = false;
    text += fmt::format("NUMA node {}  {} {}\n", cpu.numa, cpu.arch, cpu.vendor);
    add_devices(text, cpu.below, 1);
    for (const Net& net : cpu.nets) text += fmt::format("  {}\n", net_text(net));
  }
  std::vector<int> leaves = graph.gpus();
  leaves.insert(leaves.end(), graph.nets().begin(), graph.nets().end());
  std::vector<std::vector<std::string>> rows(1, {""});
  for (const int leaf : leaves) rows[0].push_back(label(graph.nodes()[static_cast<size_t>(leaf)]));
  for (const int from : leaves) {
    rows.push_back({label(graph.nodes()[static_cast<size_t>(from)])});
    for (const int to : leaves)
      rows.back().push_back(from == to ? "X" : name_of(graph.path(from, to).type));
  }
  text += "\nDistances\n" + table(rows);
  const std::vector<std::vector<int>> all = rings(graph);
  if (all.empty()) return text;
  text += "\nRings of ranks\n";
  for (size_t number = 0; number < all.size(); ++number) {
    text += fmt::format("  {}:", number);
    for (const int rank : all[number]) text += fmt::format(" {}", rank);
    text += "\n";
  }
  text += "\nNetwork devices of ranks:";
  const std::vector<int> of = rails(graph);
  for (size_t rank = 0; rank < of.size(); ++rank)
    text += fmt::format("{} {} {}", rank == 0 ? "" : ",", rank,
                        of[rank] < 0 ? "none" : graph.nodes()[static_cast<size_t>(of[rank])].name);
  return text + "\n";
}

}  // namespace niccolite::topology
