#include "comm/machine_graph.h"

#include <fstream>
#include <vector>

#include "base/interfaces.h"
#include "base/log.h"
#include "base/parameters.h"
#include "topology/detect.h"
#include "topology/rings.h"
#include "topology/xml.h"
#include "transport/net/rails.h"

namespace niccolite::comm {
namespace {

constexpr size_t kMostXml = 60 << 10;  // an all-gather takes 64 KiB of a rank

// Returns the ports that carry data. A rank alone needs none, and may have none.
Result<std::vector<topology::Port>> ports(const GraphOptions& options) {
  std::vector<topology::Port> ports;
  for (const transport::net::Network::Port& port : options.ports)
    ports.push_back({.name = port.name, .speed = port.speed, .device = port.device});
  if (!ports.empty()) return ports;
  const bootstrap::Member* const member = options.member;
  std::vector<Interface> rails;
  if (member != nullptr)
    rails = TRY(transport::net::find_rails(member->interface()));
  else
    rails = select_rails(TRY(list_interfaces()), {.filter = parameters::socket_ifname(),
                                                  .family = parameters::socket_family(),
                                                  .reaches = {}});
  for (const Interface& rail : rails)
    if (!rail.name.empty()) ports.push_back({.name = rail.name, .speed = link_speed(rail.name)});
  return ports;
}

Result<topology::Description> described_by(const std::string& file, const std::string& host,
                                           const topology::RankGpu& gpu,
                                           const topology::Description& found) {
  topology::Description description = TRY(topology::load_xml(file));
  TRY(place_rank(description, found, host, gpu, file));
  trim(description);
  return description;
}

Result<topology::Description> describe(const GraphOptions& options) {
  const gpu::DeviceInfo info = TRY(options.devices.device_info(options.device));
  const topology::RankGpu gpu{.rank = options.rank,
                              .device = options.device,
                              .kind = options.devices.kind(),
                              .bus_id = info.bus_id,
                              .compute_capability = info.compute_capability};
  const std::string& file = parameters::topo_file();
  topology::Description found;
  if (file.empty() || gpu.kind == gpu::Kind::Cuda) {
    const std::vector<topology::Port> carrying = TRY(ports(options));
    found = topology::detect("/", options.host, gpu, carrying);
  }
  if (!file.empty()) return described_by(file, options.host, gpu, found);
  const std::string provided =
      gpu.kind == gpu::Kind::Cuda ? topology::providers_file("") : std::string();
  if (provided.empty()) return found;
  Result<topology::Description> description = described_by(provided, options.host, gpu, found);
  // Nobody has asked for this one.
  if (!description.is_ok()) {
    LOG(Info, Graph, "{} is passed over: {}", provided, description.status().message());
    return found;
  }
  LOG(Info, Graph, "{} completes what the system tells of this machine", provided);
  return description;
}

// All of one length prefix: whether it is a description or a failure, then the text.
Bytes encode(const Result<topology::Description>& described) {
  Writer writer;
  std::string text =
      described.is_ok() ? topology::write_xml(described.value()) : described.status().message();
  const bool is_too_long = text.size() > kMostXml;
  writer.u8(described.is_ok() && !is_too_long ? 1 : 0);
  if (is_too_long)
    text = fmt::format("its description of the machine has {} bytes, at most {} are possible",
                       text.size(), kMostXml);
  writer.text(text);
  return std::move(writer).take();
}

Status add(topology::Description& whole, std::span<const std::byte> bytes, int rank) {
  const std::string origin = fmt::format("rank {}", rank);
  Reader reader(bytes, origin);
  const bool is_fine = reader.u8() != 0;
  const std::string text = reader.text(kMostXml);
  TRY(reader.finish());
  if (!is_fine) return Status::invalid_usage("rank {}: {}", rank, text);
  const topology::Description part =
      TRY(topology::read_xml(text, fmt::format("what rank {} tells of its machine", rank)));
  return merge(whole, part);
}

void dump(const topology::Description& description, int rank) {
  const std::string& path = parameters::topo_dump_file();
  if (path.empty() || rank != parameters::topo_dump_file_rank()) return;
  std::ofstream file(path);
  file << topology::write_xml(description);
  file.close();
  if (!file) LOG(Warn, Graph, "NCCL_TOPO_DUMP_FILE={}: cannot be written", path);
}

std::string text_of(const std::vector<int>& order) {
  constexpr size_t kMost = 64;
  std::string text;
  for (size_t i = 0; i < std::min(order.size(), kMost); ++i) text += fmt::format(" {}", order[i]);
  return order.size() > kMost ? text + " ..." : text;
}

}  // namespace

std::vector<std::vector<int>> find_rings(const topology::Graph& graph, std::span<const int> rails,
                                         std::span<const int> graph_ranks,
                                         std::span<const int> machines, bool tells) {
  std::vector<std::vector<int>> rings = topology::rings(graph, rails, graph_ranks, machines);
  if (!tells) return rings;
  for (size_t channel = 0; channel < rings.size(); ++channel)
    LOG(Info, Graph, "Channel {:02}/{:02} :{}", channel, rings.size(), text_of(rings[channel]));
  return rings;
}

Result<std::shared_ptr<const topology::Graph>> make_machine_graph(const GraphOptions& options) {
  const Bytes mine = encode(describe(options));
  topology::Description whole;
  if (options.member == nullptr) {
    TRY(add(whole, mine, options.rank));
  } else {
    const bootstrap::Gathered all = TRY(options.member->all_gather(mine, options.deadline));
    for (size_t rank = 0; rank < all.size(); ++rank)
      TRY(add(whole, all[static_cast<int>(rank)], static_cast<int>(rank)));
  }
  dump(whole, options.rank);
  auto graph = std::make_shared<topology::Graph>(TRY(topology::Graph::make(std::move(whole))));
  if (options.rank == 0)
    LOG(Info, Graph, "{} machines, {} network devices", graph->hosts(), graph->nets().size());
  return std::shared_ptr<const topology::Graph>(std::move(graph));
}

}  // namespace niccolite::comm
