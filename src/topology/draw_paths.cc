#include "topology/draw_paths.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "topology/rings.h"

namespace niccolite::topology {
namespace {

constexpr int kCellWidth = 42, kCellHeight = 20, kLabelWidth = 64, kHeading = 26;
constexpr int kChip = 28, kHop = 30, kRingHeight = 30;
constexpr int kRingWidth = 1000;  // a longer ring goes on in the next line
constexpr size_t kMostInMatrix = 64;
constexpr size_t kMostHops = 256;  // of the rings that are shown; the first ring always is

struct Look {
  const char* color;
  const char* meaning;
};

Look look_of(PathType type) {
  switch (type) {
    case PathType::LOC:
      return {"#e4e8ec", "the same device"};
    case PathType::NVL:
    case PathType::NVB:
      return {"#2f8a4c", "NVLink"};
    case PathType::C2C:
    case PathType::P2C:
    case PathType::PXN:
      return {"#1b8a94", "chip to chip, or NVLink and then PCI"};
    case PathType::PIX:
    case PathType::PXB:
      return {"#3367b0", "PCI switches"};
    case PathType::PHB:
      return {"#b07a1e", "through the CPU"};
    case PathType::SYS:
      return {"#b83a4b", "between NUMA nodes"};
    case PathType::NET:
      return {"#7a4fae", "the network"};
    case PathType::DIS:
      return {"#444444", "no path"};
  }
  return {"#444444", ""};
}

struct Hop {
  int from = 0, to = 0;
  const Path* path = nullptr;
};

std::vector<Hop> hops_of(const Graph& graph, const std::vector<std::vector<int>>& rings) {
  std::vector<Hop> hops;
  for (const std::vector<int>& ring : rings)
    for (size_t i = 0; i < ring.size() && ring.size() > 1; ++i) {
      const int from = ring[i], to = ring[(i + 1) % ring.size()];
      hops.push_back({from, to, &graph.path(graph.gpu_of_rank(from), graph.gpu_of_rank(to))});
    }
  return hops;
}

/// The bandwidth of the slowest hop; 0 if all hops are alike.
double least_bandwidth(const std::vector<Hop>& hops) {
  const auto [least, most] =
      std::ranges::minmax_element(hops, {}, [](const Hop& hop) { return hop.path->bandwidth; });
  return least->path->bandwidth < most->path->bandwidth ? least->path->bandwidth : 0;
}

std::string label_of(const Node& node) {
  if (node.kind == NodeKind::Net) return node.name;
  return node.gpu->rank >= 0 ? fmt::format("rank {}", node.gpu->rank)
                             : fmt::format("GPU {}", node.gpu->device);
}

std::string heading(const char* text) {
  return fmt::format("<text y=\"14\" font-weight=\"600\" fill=\"#3a4652\">{}</text>\n", text);
}

/// Without the characters that markup has for itself: names come from files.
std::string unmarked(std::string text) {
  std::erase_if(text, [](char c) { return c == '<' || c == '>' || c == '&' || c == '"'; });
  return text;
}

}  // namespace

Drawing draw_rings(const Graph& graph) {
  const std::vector<std::vector<int>> all = rings(graph);
  if (all.empty() || all[0].size() < 2) return {};
  const double least = least_bandwidth(hops_of(graph, all));
  Drawing drawing{.svg = heading("Rings of ranks"), .width = 0, .height = kHeading};
  size_t shown = 0;
  for (const std::vector<int>& ring : all) {
    if (shown > 0 && (shown + 1) * ring.size() > kMostHops) break;
    ++shown;
    int x = 0;
    for (size_t i = 0; i < ring.size(); ++i) {
      const Path& path =
          graph.path(graph.gpu_of_rank(ring[i]), graph.gpu_of_rank(ring[(i + 1) % ring.size()]));
      const int y = drawing.height + kRingHeight / 2;
      const bool is_slowest = path.bandwidth <= least;
      const bool is_last = i + 1 == ring.size();
      drawing.svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"20\" rx=\"6\" fill=\"#3a4652\"/><text "
          "x=\"{}\" y=\"{}\" fill=\"#fff\" text-anchor=\"middle\">{}</text>"
          "<path d=\"M{} {}h{}\" stroke=\"{}\" stroke-width=\"{}\"{}><title>rank {} to rank {}: "
          "{}, "
          "{:.3g} GB/s</title></path>\n",
          x, y - 10, kChip, x + kChip / 2, y + 4, ring[i], x + kChip + 2, y, kHop - 4,
          look_of(path.type).color, is_slowest ? 5 : 2, is_last ? " stroke-dasharray=\"3 3\"" : "",
          ring[i], ring[(i + 1) % ring.size()], name_of(path.type), path.bandwidth);
      x += kChip + kHop;
      drawing.width = std::max(drawing.width, x);
      if (x + kChip > kRingWidth && !is_last) {
        x = 0;
        drawing.height += kRingHeight;
      }
    }
    drawing.height += kRingHeight;
  }
  drawing.svg += fmt::format(
      "<text y=\"{}\" fill=\"#5b6875\">a line is a hop in the colour of its distance{}; dashed: "
      "back "
      "to the first rank{}</text>\n",
      drawing.height + 14, least > 0 ? "; thick: the slowest hops" : "",
      shown < all.size() ? fmt::format("; {} more rings", all.size() - shown) : "");
  drawing.width = std::max(drawing.width, 640);
  drawing.height += kHeading;
  return drawing;
}

Drawing draw_distances(const Graph& graph) {
  std::vector<int> devices = graph.gpus();
  devices.insert(devices.end(), graph.nets().begin(), graph.nets().end());
  const size_t left_out = devices.size() - std::min(devices.size(), kMostInMatrix);
  devices.resize(devices.size() - left_out);
  Drawing drawing{.svg = heading("Distances"), .width = kLabelWidth, .height = kHeading};
  const auto label = [&](int device) {
    return label_of(graph.nodes()[static_cast<size_t>(device)]);
  };
  for (size_t i = 0; i < devices.size(); ++i)
    drawing.svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#7a8794\" "
        "text-anchor=\"middle\">{}</text>\n",
        kLabelWidth + kCellWidth * static_cast<int>(i) + kCellWidth / 2, drawing.height + 12,
        unmarked(label(devices[i])));
  drawing.height += 18;
  std::set<std::pair<std::string, std::string>> looks;  // colour and meaning of cells
  for (const int from : devices) {
    drawing.svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#7a8794\" text-anchor=\"end\">{}</text>\n",
        kLabelWidth - 6, drawing.height + 14, unmarked(label(from)));
    int x = kLabelWidth;
    for (const int to : devices) {
      const Path& path = graph.path(from, to);
      const Look look = look_of(path.type);
      const bool is_same = from == to;
      if (!is_same) looks.insert({look.color, look.meaning});
      drawing.svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"{}\"><title>{} to "
          "{}: {}, "
          "{:.3g} GB/s</title></rect>",
          x, drawing.height, kCellWidth - 2, kCellHeight - 2, is_same ? "#e4e8ec" : look.color,
          unmarked(label(from)), unmarked(label(to)), name_of(path.type), path.bandwidth);
      if (!is_same)
        drawing.svg += fmt::format(
            "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#fff\" "
            "text-anchor=\"middle\">{}</text>\n",
            x + kCellWidth / 2 - 1, drawing.height + 13, name_of(path.type));
      x += kCellWidth;
    }
    drawing.width = std::max(drawing.width, x);
    drawing.height += kCellHeight;
  }
  int x = 0;
  drawing.height += 8;
  for (const auto& [color, meaning] : looks) {
    drawing.svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"12\" rx=\"3\" fill=\"{}\"/><text x=\"{}\" "
        "y=\"{}\" fill=\"#5b6875\">{}</text>\n",
        x, drawing.height, color, x + 20, drawing.height + 10, meaning);
    x += 48 + 7 * static_cast<int>(meaning.size());
  }
  drawing.width = std::max(drawing.width, x);
  drawing.height += kHeading;
  if (left_out > 0) {
    drawing.svg += fmt::format("<text y=\"{}\" fill=\"#b07a1e\">{} more devices</text>\n",
                               drawing.height, left_out);
    drawing.height += kHeading;
  }
  return drawing;
}

std::string describe_slowest_hop(const Graph& graph) {
  const std::vector<std::vector<int>> all = rings(graph);
  const std::vector<Hop> hops = hops_of(graph, all);
  if (hops.empty()) return "";
  const Hop& slowest =
      *std::ranges::min_element(hops, {}, [](const Hop& hop) { return hop.path->bandwidth; });
  return fmt::format("slowest hop of the rings: rank {} to rank {}, {}, {:.3g} GB/s", slowest.from,
                     slowest.to, name_of(slowest.path->type), slowest.path->bandwidth);
}

}  // namespace niccolite::topology
