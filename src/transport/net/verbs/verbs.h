// The network of InfiniBand and RoCE ("IB"): a Network whose connections are Pairs. Thread
// safety: as Network's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/net/network.h"

namespace niccolite::transport::net::verbs {

inline constexpr char kName[] = "IB";

/// Opens it. InvalidUsage: NCCL_IB_DISABLE, no library, no device, no active port, no such GID;
/// names host, device, port and remedy.
Result<std::shared_ptr<Network>> open(const Network::Wish& wish);

/// A port of this machine, for people and for the choice of a network.
struct PortState {
  std::string name;  // "mlx5_0:1"
  Network::Port in_graph;
  std::string kind;  // "RoCE", "InfiniBand"
  bool is_active = false;
  std::string state;  // "active", "down"
  int speed = 0;      // Mbit/s; 0: unknown
  std::string gid;    // "10.77.1.1 (index 3)", or why there is none
  bool is_virtual = false;
  bool is_named = true;  // by NCCL_IB_HCA, or because nothing names others
};
/// Nothing without a library, or with NCCL_IB_DISABLE.
std::vector<PortState> port_states();

}  // namespace niccolite::transport::net::verbs
