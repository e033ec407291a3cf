// Pair: facts about the way between two ranks of a communicator. Both ranks know equal facts
// (comm/links.h), and so choose the same connector.
#pragma once

#include <cstdint>

namespace niccolite::transport {

/// Do the GPUs of two ranks load and store in each other's memory? In the order in which one end's
/// answer outdoes the other's.
enum class PeerAccess : uint8_t {
  Works,
  Untried,    // the driver offers it; nobody has tried it yet (path_trial.h)
  Absent,     // the driver does not offer it
  Forbidden,  // by NCCL_P2P_DISABLE or NCCL_P2P_LEVEL
  Broken,     // it was tried: stores do not arrive, or loads bring something else
};
inline constexpr int kPeerAccesses = 5;

struct Pair {
  bool same_process = false;
  bool same_machine = true;
  PeerAccess peer_access = PeerAccess::Works;  // of the two ends' the later in the order above
  bool shares_host = true;                     // neither end has NCCL_SHM_DISABLE=1
  int peer_device = -1;                        // in its process; -1: unknown. For the log

  bool has_peer_access() const {
    return same_machine && (peer_access == PeerAccess::Works || peer_access == PeerAccess::Untried);
  }
};

}  // namespace niccolite::transport
