// The effect of NCCL_P2P_DISABLE and NCCL_P2P_LEVEL on two GPUs of one machine, and of
// NCCL_NET_GDR_LEVEL on a GPU and a NIC.
#pragma once

#include <functional>

#include "topology/graph.h"

namespace niccolite::comm {

/// Do the variables of this process forbid peer access over such a distance? Calls `distance` only
/// if the answer depends on it. Distances beyond NCCL_P2P_LEVEL are forbidden. LOC means "never"
/// (NCCL's guide), so that the same GPU counts as NVL.
bool forbids_peer_access(const std::function<topology::PathType()>& distance);

/// Do they forbid a NIC at that distance to read and write memory of the GPU?
bool forbids_gpu_direct(topology::PathType distance);

}  // namespace niccolite::comm
