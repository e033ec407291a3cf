#include <algorithm>
#include <cstdlib>
#include <map>

#include "topology/draw.h"
#include "topology/draw_paths.h"

namespace niccolite::topology {
namespace {

constexpr int kLeafWidth = 100, kLeafHeight = 58;
constexpr int kGap = 10, kTitle = 20;
constexpr int kMargin = 28, kHeader = 78;
constexpr int kPictureGap = 22;  // between machines, rings and distances

struct Box {
  std::string title{};
  std::string colour{};
  std::string second{};  // a smaller line
  std::string third{};   // its bus
  bool is_slow = false;  // the bus is slower than the bus of another GPU
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
          .colour = "#dcebd9",
          .second = net.speed > 0 ? fmt::format("{} Gbit/s", net.speed / 1000.0) : "network"};
}

/// Gigatransfers per second over all lanes; 0: unknown.
double bus_speed(const Pci& pci) {
  return std::strtod(pci.link_speed.c_str(), nullptr) * pci.link_width;
}

std::string lanes_text(const Pci& pci) {
  if (bus_speed(pci) <= 0) return "";
  return fmt::format("{:g} GT/s x{}", std::strtod(pci.link_speed.c_str(), nullptr), pci.link_width);
}

double fastest_bus(const Description& description) {
  double fastest = 0;
  for_each_gpu(description, [&](const Cpu&, const Pci& pci, const Gpu&) {
    fastest = std::max(fastest, bus_speed(pci));
  });
  return fastest;
}

/// `fastest`: the bus of a GPU.
void add_devices(std::vector<Box>& boxes, const std::vector<Pci>& devices, double fastest) {
  for (const Pci& pci : devices) {
    for (const Net& net : pci.nets) boxes.push_back(net_box(net));
    if (pci.gpu) {
      const std::string of =
          pci.gpu->rank >= 0 ? fmt::format("rank {}", pci.gpu->rank) : pci.bus_id;
      boxes.push_back({.title = fmt::format("GPU {}", pci.gpu->device),
                       .colour = "#d6e3f3",
                       .second = of,
                       .third = lanes_text(pci),
                       .is_slow = bus_speed(pci) > 0 && bus_speed(pci) < fastest,
                       .name = pci.bus_id});
    }
    if (pci.below.empty()) continue;
    Box box{.title = "PCI " + pci.bus_id, .colour = "#e9edf1"};
    add_devices(box.inside, pci.below, fastest);
    boxes.push_back(std::move(box));
  }
}

// Computes widths and heights, innermost first: the content of a box stands side by side.
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
  constexpr int kTitleLetter = 8;
  box.width = std::max(box.width, kTitleLetter * static_cast<int>(box.title.size()) + 2 * kGap);
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
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{}\" "
      "stroke=\"{}\" stroke-width=\"{}\"/>\n"
      "<text x=\"{}\" y=\"{}\" fill=\"#3a4652\" font-weight=\"600\">{}</text>\n",
      box.x, box.y, box.width, box.height, box.colour, box.is_slow ? "#b83a4b" : "#c3ccd5",
      box.is_slow ? 2 : 1, box.x + 7, box.y + 17, escape(box.title));
  if (!box.second.empty())
    svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#5b6875\">{}</text>\n", box.x + 7,
                       box.y + 33, escape(box.second));
  if (!box.third.empty())
    svg += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"{}\">{}{}</text>\n",
                       box.x + 7, box.y + 49, box.is_slow ? "#b83a4b" : "#7a8794",
                       escape(box.third), box.is_slow ? ", slow" : "");
  if (!box.name.empty()) gpus[box.name] = &box;
  for (const Box& inner : box.inside) draw(svg, inner, gpus);
}

// Under the boxes of a machine: for the bar of a switch, for lines between GPUs, or for nothing.
int room_for_links(const std::vector<const Cpu*>& cpus) {
  int room = 0;
  for (const Cpu* cpu : cpus) {
    auto look = [&](const Pci& pci) {
      if (!pci.gpu) return;
      for (const NvLink& link : pci.gpu->nvlinks)
        room = std::max(room, link.target_class.starts_with("0x0680") ? 44 : 16);
    };
    visit_pci(cpu->below, look);
  }
  return room;
}

// Draws the NVLinks of one machine: lines from GPU to GPU, and a bar under the GPUs of a switch.
void draw_nvlinks(std::string& svg, const Box& machine, const std::vector<const Cpu*>& cpus,
                  const std::map<std::string, const Box*>& gpus) {
  const int bar = machine.y + machine.height - kGap - 4;
  int left = INT32_MAX, right = 0;
  const auto line = [&](int x1, int y1, int x2, int y2) {
    svg += fmt::format(
        "<path d=\"M{} {} L{} {}\" stroke=\"#2f8a4c\" stroke-width=\"2\" fill=\"none\"/>\n", x1, y1,
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
                "<path d=\"M{} {} C{} {} {} {} {} {}\" stroke=\"#2f8a4c\" stroke-width=\"1.5\" "
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
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"8\" rx=\"3\" fill=\"#2f8a4c\"/>\n<text "
      "x=\"{}\" y=\"{}\" fill=\"#2f8a4c\">NVSwitch</text>\n",
      left - kGap, bar - 4, right - left + 2 * kGap, left, bar - 8);
}

}  // namespace

std::string draw_svg(const Graph& graph) {
  const double fastest = fastest_bus(graph.description());
  std::vector<Box> machines{};
  std::vector<std::vector<const Cpu*>> cpus_of;
  std::string host{};
  for (const Cpu& cpu : graph.description().cpus) {
    if (machines.empty() || cpu.host != host) {
      machines.push_back(
          {.title = cpu.host.empty() ? "machine" : "machine " + cpu.host, .colour = "#f5f7f9"});
      cpus_of.emplace_back();
    }
    host = cpu.host;
    Box box{.title = fmt::format("NUMA node {}", cpu.numa), .colour = "#fdf6e9"};
    add_devices(box.inside, cpu.below, fastest);
    for (const Net& net : cpu.nets) box.inside.push_back(net_box(net));
    machines.back().inside.push_back(std::move(box));
    cpus_of.back().push_back(&cpu);
  }
  int y = kHeader, width = 0;
  std::string svg{};
  for (size_t i = 0; i < machines.size(); ++i) {
    Box& machine = machines[i];
    measure(machine);
    machine.height += room_for_links(cpus_of[i]);
    place(machine, kMargin, y);
    std::map<std::string, const Box*> gpus;
    draw(svg, machine, gpus);
    draw_nvlinks(svg, machine, cpus_of[i], gpus);
    y += machine.height + kGap;
    width = std::max(width, machine.width);
  }
  y += kPictureGap - kGap;
  for (const Drawing& drawing : {draw_rings(graph), draw_distances(graph)}) {
    if (drawing.height == 0) continue;
    svg += fmt::format("<g transform=\"translate({} {})\">\n{}</g>\n", kMargin, y, drawing.svg);
    y += drawing.height + kPictureGap;
    width = std::max(width, drawing.width);
  }
  const std::string slowest = describe_slowest_hop(graph);
  const std::string summary =
      fmt::format("{} GPU{}, {} network device{}{}{}", graph.gpus().size(),
                  graph.gpus().size() == 1 ? "" : "s", graph.nets().size(),
                  graph.nets().size() == 1 ? "" : "s", slowest.empty() ? "" : "; ", slowest);
  constexpr int kLetter = 7;
  width = std::max(width, kLetter * static_cast<int>(summary.size())) + 2 * kMargin;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 "
             "{0} {1}\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', "
             "sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" rx=\"10\" "
             "fill=\"#fff\"/>\n<text x=\"{2}\" y=\"38\" font-size=\"20\" font-weight=\"600\" "
             "fill=\"#1c2733\">topology <tspan fill=\"#7a8794\" font-weight=\"400\">{3} machine{4}"
             "</tspan></text>\n<text x=\"{2}\" y=\"60\" font-size=\"13\" fill=\"#5b6875\">{5}"
             "</text>\n",
             width, y, kMargin, machines.size(), machines.size() == 1 ? "" : "s", summary) +
         svg + "</svg>\n";
}

}  // namespace niccolite::topology
