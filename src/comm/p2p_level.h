// The effect of NCCL_P2P_DISABLE and NCCL_P2P_LEVEL on two GPUs of one machine.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "topology/graph.h"

namespace niccolite::comm {

/// Do the variables of this process forbid peer access over such a distance? Calls `distance` only
/// if the answer depends on it. Distances beyond NCCL_P2P_LEVEL are forbidden. LOC means "never"
/// (NCCL's guide), so that the same GPU counts as NVL.
bool forbids_peer_access(const std::function<topology::PathType()>& distance);

/// Returns the level that a variable names. Nothing: it is not set, or names none, which costs a
/// warning, once in a process (`told`).
std::optional<topology::PathType> level_of(const char* variable, const std::string& text,
                                           std::atomic<bool>& told);

}  // namespace niccolite::comm
