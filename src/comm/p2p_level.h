// What NCCL_P2P_DISABLE and NCCL_P2P_LEVEL say of two GPUs of one machine.
#pragma once

#include <functional>

#include "topology/graph.h"

namespace niccolite::comm {

/// Do the variables of this process forbid peer access over such a distance, which is only asked
/// for where that depends on it? What is farther than NCCL_P2P_LEVEL is forbidden. LOC means
/// "never" (NCCL's guide), so that the same GPU counts as NVL.
bool forbids_peer_access(const std::function<topology::PathType()>& distance);

}  // namespace niccolite::comm
