// The machine graph of a communicator, put together from each rank's knowledge of its machine.
// Equal on all ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bootstrap/member.h"
#include "gpu/devices.h"
#include "topology/graph.h"
#include "transport/net/network.h"

namespace niccolite::comm {

struct GraphOptions {
  gpu::Devices& devices;
  int device = 0;
  int rank = 0;
  std::string host{};                   // RankInfo::host
  bootstrap::Member* member = nullptr;  // null: of one rank
  std::vector<transport::net::Network::Port>
      ports{};  // of the network; none: interfaces carry data
  Deadline deadline = Deadline::never();
};

/// Collective over all ranks. Reads NCCL_TOPO_FILE, or looks at the machine; writes
/// NCCL_TOPO_DUMP_FILE. InvalidUsage, on all ranks, of the first rank whose file is wrong or does
/// not fit.
Result<std::shared_ptr<const topology::Graph>> make_machine_graph(const GraphOptions& options);

/// topology::rings(), told to the log, as NCCL writes it, where `tells`.
std::vector<std::vector<int>> find_rings(const topology::Graph& graph, std::span<const int> rails,
                                         std::span<const int> graph_ranks,
                                         std::span<const int> machines, bool tells);

}  // namespace niccolite::comm
