// GPUDirect RDMA: which NICs may read and write memory of a rank's GPU themselves, by
// NCCL_NET_GDR_LEVEL and their distances.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/devices.h"
#include "topology/graph.h"
#include "transport/net/network.h"

namespace niccolite::comm {

/// Returns the level of NCCL_NET_GDR_LEVEL, else of NCCL_IB_GDR_LEVEL, its old name. Nothing:
/// neither is set, or it names none, which costs a warning, once in a process.
std::optional<topology::PathType> gpu_direct_level();

struct GpuDirect {
  std::vector<std::string> ports;  // whose NICs may
  std::string obstacle;            // to the others, for people; empty: there are none
};
/// Calls `distance` for ports of real NICs; virtual ones are beside all GPUs (PIX). On real GPUs
/// none may unless a level is set, because GPUDirect RDMA has never run there; on virtual ones the
/// level is then PXB.
GpuDirect choose_gpu_direct(gpu::Kind kind, std::optional<topology::PathType> level,
                            std::span<const transport::net::Network::Port> ports,
                            const std::function<topology::PathType(const std::string&)>& distance);

}  // namespace niccolite::comm
