#include "cli/topology/command.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/interfaces.h"
#include "base/parameters.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "cli/grammar/options.h"
#include "gpu/machine.h"
#include "topology/detect.h"
#include "topology/draw.h"
#include "topology/rails.h"
#include "topology/rings.h"
#include "topology/xml.h"
#include "transport/net/verbs/verbs.h"

namespace niccolite::topology_command {
namespace {

constexpr const char* kFooter =
    R"(Prints NUMA nodes, PCI switches, GPUs and network devices, the distances between them (LOC NVL NVB C2C PIX PXB P2C PHB SYS
NET, as NCCL_P2P_LEVEL has them), the rings, the network device of each GPU, and InfiniBand and RoCE ports with their state,
speed, GID, and the GPUs nearest to each (of this machine).

Examples:
  niccolite topology                                 this machine: its GPUs, or virtual ones
  niccolite topology --from dgx.xml --svg dgx.svg    one that NCCL_TOPO_DUMP_FILE has described
  niccolite topology --xml here.xml                  a file for NCCL_TOPO_FILE

Exit status: 0 fine; 2 wrong usage, or a file that is none; 3 a file cannot be written.)";

/// Describes this machine, with a rank for each of its GPUs.
Result<topology::Description> describe_this_machine(std::span<const topology::Port> ports) {
  gpu::Machine* const machine = TRY(gpu::machine());
  topology::Description whole;
  const int count = machine->device_count();
  for (int device = 0; device < count; ++device) {
    const gpu::DeviceInfo info = TRY(machine->device_info(device));
    TRY(merge(whole, topology::detect("/", "",
                                      {.rank = device,
                                       .device = device,
                                       .kind = machine->kind(),
                                       .bus_id = info.bus_id,
                                       .compute_capability = info.compute_capability},
                                      ports)));
  }
  return whole;
}

/// Returns the interfaces that may carry data.
Result<std::vector<topology::Port>> interfaces() {
  const std::vector<Interface> present = TRY(list_interfaces());
  std::vector<topology::Port> ports;
  for (const Interface& interface :
       select_interfaces(present, {.filter = parameters::socket_ifname(),
                                  .family = parameters::socket_family(),
                                  .reaches = {}}))
    if (interface.name != "lo")
      ports.push_back({.name = interface.name, .speed = link_speed(interface.name)});
  return ports;
}

Status write_files(const Options& options, const topology::Graph& graph) {
  if (!options.svg.empty()) TRY(grammar::write_text(options.svg, draw_svg(graph)));
  if (!options.xml.empty()) TRY(grammar::write_text(options.xml, write_xml(graph.description())));
  return {};
}

/// A port of InfiniBand or RoCE, with the GPUs of this machine to which it is among the nearest.
struct ServingPort {
  transport::net::verbs::PortState state;
  std::vector<int> gpus{};
};
using Ports = std::vector<ServingPort>;

Result<Ports> ports_of_this_machine() {
  Ports ports;
  std::vector<topology::Port> in_graph;
  for (transport::net::verbs::PortState& state : transport::net::verbs::port_states()) {
    if (state.is_active && state.is_named)
      in_graph.push_back({.name = state.in_graph.name,
                          .speed = state.in_graph.speed,
                          .device = state.in_graph.device});
    ports.push_back({.state = std::move(state)});
  }
  const topology::Graph graph = TRY(topology::Graph::make(TRY(describe_this_machine(in_graph))));
  for (const int gpu : graph.gpus())
    for (const int net : topology::nearest_nets(graph, gpu)) {
      const auto port = std::ranges::find_if(ports, [&](const ServingPort& each) {
        return each.state.in_graph.name == graph.nodes()[static_cast<size_t>(net)].name;
      });
      if (port != ports.end())
        port->gpus.push_back(graph.nodes()[static_cast<size_t>(gpu)].gpu->device);
    }
  return ports;
}

std::string text_of(const Ports& ports) {
  if (ports.empty()) return "";
  std::string text = "\nInfiniBand and RoCE ports\n";
  for (const auto& [port, gpus] : ports)
    text += fmt::format(
        "  {}  {}, {}, {}, GID {}{}{}{}\n", port.name, port.kind, port.state,
        port.speed > 0 ? fmt::format("{} Gbit/s", port.speed / 1000) : "unknown speed", port.gid,
        port.is_virtual ? ", virtual" : "", port.is_named ? "" : ", not chosen by NCCL_IB_HCA",
        gpus.empty() ? "" : fmt::format(", for GPU {}", fmt::join(gpus, ", ")));
  return text;
}

nlohmann::json to_json(const Ports& ports) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [port, gpus] : ports)
    all.push_back({{"name", port.name},
                   {"kind", port.kind},
                   {"state", port.state},
                   {"mbit_per_s", port.speed},
                   {"gid", port.gid},
                   {"virtual", port.is_virtual},
                   {"chosen", port.is_named},
                   {"gpus", gpus}});
  return all;
}

nlohmann::json to_json(const topology::Graph& graph, const Ports& ports) {
  std::vector<int> leaves = graph.gpus();
  leaves.insert(leaves.end(), graph.nets().begin(), graph.nets().end());
  nlohmann::json devices = nlohmann::json::array(), distances = nlohmann::json::array();
  for (const int leaf : leaves) {
    const topology::Node& node = graph.nodes()[static_cast<size_t>(leaf)];
    nlohmann::json device{{"name", node.name}, {"host", node.host}, {"numa", node.numa}};
    device["kind"] = node.gpu != nullptr ? "gpu" : "net";
    if (node.gpu != nullptr) {
      device["device"] = node.gpu->device;
      device["rank"] = node.gpu->rank;
    } else {
      device["mbit_per_s"] = node.net->speed;
    }
    devices.push_back(std::move(device));
    nlohmann::json row = nlohmann::json::array();
    for (const int to : leaves) {
      const topology::Path& path = graph.path(leaf, to);
      row.push_back({{"type", name_of(path.type)}, {"gbs", path.bandwidth}});
    }
    distances.push_back(std::move(row));
  }
  return {{"format", "niccolite-topology-1"},
          {"devices", std::move(devices)},
          {"distances", std::move(distances)},
          {"rings", rings(graph)},
          {"ports", to_json(ports)}};
}

Result<topology::Graph> make_graph(const Options& options) {
  topology::Description description =
      TRY(options.from.empty() ? describe_this_machine(TRY(interfaces()))
                               : topology::load_xml(options.from));
  return topology::Graph::make(std::move(description));
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  using namespace grammar;
  app.add_option("--from,--topology", options.from,
                 "A topology file, as NCCL_TOPO_DUMP_FILE writes it, instead of this machine")
      ->type_name(kFile);
  add(app, kSvgFile, options.svg, "", " instead of printing");
  app.add_option("--xml", options.xml,
                 "Write a topology file (-: standard output) instead of printing")
      ->type_name(kFile);
  add_flag(app, kJsonFlag, options.wants_json, " instead of text");
  app.footer(kFooter);
}

int run(const Options& options) {
  Result<topology::Graph> graph = make_graph(options);
  if (!graph.is_ok()) {
    fmt::print(stderr, "niccolite topology: {}\n", graph.status().message());
    return grammar::kExitUsage;
  }
  if (const Status status = write_files(options, *graph); !status.is_ok()) {
    fmt::print(stderr, "niccolite topology: {}\n", status.message());
    return grammar::kExitFailed;
  }
  const bool wants_text = !options.wants_json && options.svg.empty() && options.xml.empty();
  if (!options.wants_json && !wants_text) return grammar::kExitFine;
  const Result<Ports> ports = options.from.empty() ? ports_of_this_machine() : Ports();
  if (!ports.is_ok()) {
    fmt::print(stderr, "niccolite topology: {}\n", ports.status().message());
    return grammar::kExitFailed;
  }
  if (options.wants_json)
    fmt::print("{}\n", to_json(*graph, ports.value()).dump(1));
  else
    fmt::print("{}{}", draw_text(*graph), text_of(ports.value()));
  return grammar::kExitFine;
}

}  // namespace niccolite::topology_command
