#include <algorithm>
#include <map>

#include "topology/draw.h"

namespace niccolite::topology {
namespace {

constexpr int kLeafWidth = 92, kLeafHeight = 44;
constexpr int kGap = 10, kTitle = 20;

struct Box {
  std::string title{};
  std::string colour{};
  std::string second{};  // a smaller line
  std::string name{};    // of a GPU, for NVLinks: its bus id
  std::vector<Box> inside{};
  int x = 0, y = 0, width = 0, height = 0;
};

std::string escape(const std::string& text) {
  std::string safe{};
  for (const char letter : text)
    safe += letter == '<'   ? "&lt;"
            : letter == '>' ? "&gt;"
            : letter == '&' ? "&amp;"
                            : std::string(1, letter);
  return safe;
}

Box net_box(const Net& net) {
  return {.title = net.name,
          .colour = "#d9ead3",
          .second = net.speed > 0 ? fmt::format("{} Gbit/s", net.speed / 1000.0) : "network"};
}

void add_devices(std::vector<Box>& boxes, const std::vector<Pci>& devices) {
  for (const Pci& pci : devices) {
    for (const Net& net : pci.nets) boxes.push_back(net_box(net));
    if (pci.gpu) {
      const std::string of =
          pci.gpu->rank >= 0 ? fmt::format("rank {}", pci.gpu->rank) : pci.bus_id;
      boxes.push_back({.title = fmt::format("GPU {}", pci.gpu->device),
                       .colour = "#cfe2f3",
                       .second = of,
                       .name = pci.bus_id});
    }
    if (pci.below.empty()) continue;
    Box box{.title = "PCI " + pci.bus_id, .colour = "#f3f3f3"};
    add_devices(box.inside, pci.below);
    boxes.push_back(std::move(box));
  }
}

// Widths and heights, innermost first: what lies in a box stands side by side.
void measure(Box& box) {
  box.width = kLeafWidth;
  box.height = kLeafHeight;
  if (box.inside.empty()) return;
  box.width = kGap;
  for (Box& inner : box.inside) {
    measure(inner);
    box.width += inner.width + kGap;
    box.height = std::max(box.height, inner.height + 2 * kGap + kTitle);
  }
}

void place(Box& box, int x, int y) {
  box.x = x;
  box.y = y;
  for (Box& inner : box.inside) {
    place(inner, x + kGap, y + kGap + kTitle);
    x += inner.width + kGap;
  }
}

void draw(std::string& svg, const Box& box, std::map<std::string, const Box*>& gpus) {
  svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" stroke=\"#666\"/>\n"
      "<text x=\"{}\" y=\"{}\">{}</text>\n",
      box.x, box.y, box.width, box.height, box.colour, box.x + 7, box.y + 17, escape(box.title));
  if (!box.second.empty())
    svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555\">{}</text>\n", box.x + 7, box.y + 35,
                       escape(box.second));
  if (!box.name.empty()) gpus[box.name] = &box;
  for (const Box& inner : box.inside) draw(svg, inner, gpus);
}

// Draws the NVLinks of one machine: lines from GPU to GPU, and a bar under GPUs that a switch
// joins.
void draw_nvlinks(std::string& svg, const Box& machine, const std::vector<const Cpu*>& cpus,
                  const std::map<std::string, const Box*>& gpus) {
  const int bar = machine.y + machine.height - kGap - 4;
  int left = INT32_MAX, right = 0;
  const auto line = [&](int x1, int y1, int x2, int y2) {
    svg += fmt::format(
        "<path d=\"M{} {} L{} {}\" stroke=\"#2e7d32\" stroke-width=\"2\" fill=\"none\"/>\n", x1, y1,
        x2, y2);
  };
  for (const Cpu* cpu : cpus) {
    const auto each = [&](const Pci& pci) {
      if (!pci.gpu || !gpus.contains(pci.bus_id)) return;
      const Box& from = *gpus.at(pci.bus_id);
      const int x = from.x + from.width / 2, y = from.y + from.height;
      for (const NvLink& link : pci.gpu->nvlinks) {
        if (const auto to = gpus.find(link.target); to != gpus.end()) {
          if (pci.bus_id < link.target) {
            const int x2 = to->second->x + to->second->width / 2,
                      y2 = to->second->y + to->second->height;
            svg += fmt::format(
                "<path d=\"M{} {} C{} {} {} {} {} {}\" stroke=\"#2e7d32\" stroke-width=\"1.5\" "
                "fill=\"none\"/>\n",
                x, y, x, y + 26, x2, y2 + 26, x2, y2);
          }
        } else if (link.target_class.starts_with("0x0680")) {
          left = std::min(left, x);
          right = std::max(right, x);
          line(x, y, x, bar);
        }
      }
    };
    auto visit = each;
    visit_pci(cpu->below, visit);
  }
  if (right == 0) return;
  svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"8\" rx=\"3\" fill=\"#2e7d32\"/>\n<text "
      "x=\"{}\" y=\"{}\" fill=\"#2e7d32\">NVSwitch</text>\n",
      left - kGap, bar - 4, right - left + 2 * kGap, left, bar - 8);
}

}  // namespace

std::string draw_svg(const Graph& graph) {
  std::vector<Box> machines{};
  std::vector<std::vector<const Cpu*>> cpus_of;
  std::string host{};
  for (const Cpu& cpu : graph.description().cpus) {
    if (machines.empty() || cpu.host != host) {
      machines.push_back(
          {.title = cpu.host.empty() ? "machine" : "machine " + cpu.host, .colour = "#ffffff"});
      cpus_of.emplace_back();
    }
    host = cpu.host;
    Box box{.title = fmt::format("NUMA node {}", cpu.numa), .colour = "#fff7e0"};
    add_devices(box.inside, cpu.below);
    for (const Net& net : cpu.nets) box.inside.push_back(net_box(net));
    machines.back().inside.push_back(std::move(box));
    cpus_of.back().push_back(&cpu);
  }
  constexpr int kForLinks = 44;  // under the boxes of a machine
  int y = kGap, width = 0;
  std::string svg{};
  for (size_t i = 0; i < machines.size(); ++i) {
    Box& machine = machines[i];
    measure(machine);
    machine.height += kForLinks;
    place(machine, kGap, y);
    std::map<std::string, const Box*> gpus;
    draw(svg, machine, gpus);
    draw_nvlinks(svg, machine, cpus_of[i], gpus);
    y += machine.height + kGap;
    width = std::max(width, machine.width + 2 * kGap);
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 "
             "{} "
             "{}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" "
             "height=\"100%\" fill=\"#fff\"/>\n",
             width, y, width, y) +
         svg + "</svg>\n";
}

}  // namespace niccolite::topology
