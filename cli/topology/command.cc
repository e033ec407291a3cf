#include "cli/topology/command.h"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/interfaces.h"
#include "base/parameters.h"
#include "cli/perf/exit_code.h"
#include "gpu/machine.h"
#include "topology/detect.h"
#include "topology/draw.h"
#include "topology/xml.h"

namespace niccolite::topology_command {
namespace {

constexpr const char* kFooter =
    R"(Prints NUMA nodes, PCI switches, GPUs and network devices, the distances between them (LOC NVL NVB C2C PIX PXB P2C PHB SYS
NET, as NCCL_P2P_LEVEL has them), the rings, and the network device of each GPU.

Examples:
  niccolite topology                                 this machine: its GPUs, or virtual ones
  niccolite topology --from dgx.xml --svg dgx.svg    one that NCCL_TOPO_DUMP_FILE has described
  niccolite topology --xml here.xml                  a file for NCCL_TOPO_FILE

Exit status: 0 fine; 2 wrong usage, or a file that is none; 3 a file cannot be written.)";

/// Of each of this machine's GPUs, as if it were a rank's.
Result<topology::Description> describe_this_machine() {
  gpu::Machine* const machine = TRY(gpu::machine());
  const std::vector<Interface> present = TRY(list_interfaces());
  std::vector<topology::Port> ports;
  for (const Interface& interface :
       select_interfaces(present, {.filter = parameters::socket_ifname(),
                                  .family = parameters::socket_family(),
                                  .reaches = {}}))
    if (interface.name != "lo")
      ports.push_back({.name = interface.name, .speed = link_speed(interface.name)});
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

bool write(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return true;
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return true;
  fmt::print(stderr, "niccolite topology: {} cannot be written\n", path);
  return false;
}

Result<topology::Graph> make_graph(const Options& options) {
  topology::Description description =
      TRY(options.from.empty() ? describe_this_machine() : topology::load_xml(options.from));
  return topology::Graph::make(std::move(description));
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  app.add_option("--from", options.from, "A topology file in NCCL's form, instead of this machine");
  app.add_option("--svg", options.svg,
                 "Draw into this file (-: standard output) instead of printing");
  app.add_option("--xml", options.xml,
                 "Write a topology file (-: standard output) instead of printing");
  app.footer(kFooter);
}

int run(const Options& options) {
  Result<topology::Graph> graph = make_graph(options);
  if (!graph.is_ok()) {
    fmt::print(stderr, "niccolite topology: {}\n", graph.status().message());
    return perf::kExitUsage;
  }
  bool is_written = true;
  if (!options.svg.empty()) is_written &= write(options.svg, draw_svg(*graph));
  if (!options.xml.empty()) is_written &= write(options.xml, write_xml(graph->description()));
  if (options.svg.empty() && options.xml.empty()) fmt::print("{}", draw_text(*graph));
  return is_written ? perf::kExitFine : perf::kExitFailed;
}

}  // namespace niccolite::topology_command
