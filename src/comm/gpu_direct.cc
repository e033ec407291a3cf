#include "comm/gpu_direct.h"

#include <atomic>

#include "base/parameters.h"
#include "comm/p2p_level.h"

namespace niccolite::comm {

using topology::PathType;

std::optional<PathType> gpu_direct_level() {
  static std::atomic<bool> told{false}, told_of_old{false};
  const std::string& now = parameters::net_gdr_level();
  return now.empty() ? level_of("NCCL_IB_GDR_LEVEL", parameters::ib_gdr_level(), told_of_old)
                     : level_of("NCCL_NET_GDR_LEVEL", now, told);
}

GpuDirect choose_gpu_direct(gpu::Kind kind, std::optional<PathType> level,
                            std::span<const transport::net::Network::Port> ports,
                            const std::function<PathType(const std::string&)>& distance) {
  if (!level && kind == gpu::Kind::Cuda)
    return {.ports = {},
            .obstacle =
                "NICs can read and write memory of GPUs themselves (GPUDirect RDMA), which "
                "has never run on real ones: NCCL_NET_GDR_LEVEL=PXB (or PHB, SYS) asks for "
                "it, and it is tried before it carries data"};
  const PathType most = level.value_or(PathType::PXB);
  GpuDirect chosen;
  for (const auto& port : ports) {
    const PathType apart = port.is_virtual ? PathType::PIX : distance(port.name);
    if (apart <= most)
      chosen.ports.push_back(port.name);
    else
      chosen.obstacle += fmt::format("{}{} is {} from the GPU", chosen.obstacle.empty() ? "" : ", ",
                                     port.name, topology::name_of(apart));
  }
  if (!chosen.obstacle.empty())
    chosen.obstacle += fmt::format(", beyond {} (NCCL_NET_GDR_LEVEL)", topology::name_of(most));
  return chosen;
}

}  // namespace niccolite::comm
