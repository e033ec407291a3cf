#include "transport/same_process.h"

namespace niccolite::transport {

std::string objection_to(PeerAccess access) {
  switch (access) {
    case PeerAccess::Works:
    case PeerAccess::Untried:
      return {};
    case PeerAccess::Absent:
      return "the driver offers no peer access between their GPUs";
    case PeerAccess::Forbidden:
      return "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access between their GPUs";
    case PeerAccess::Broken:
      return "peer access between their GPUs was tried and does not work";
  }
  return "peer access of an unknown kind";
}

std::string SameProcess::objection(const Pair& pair) const {
  if (!pair.same_machine) return "they are on different machines";
  if (!pair.same_process) return "they are in different processes";
  return objection_to(pair.peer_access);
}

size_t SameProcess::device_bytes() const {
  std::lock_guard lock(mutex_);
  return share_.bytes();
}

Status SameProcess::suspend_own() {
  forget_kept();
  std::lock_guard lock(mutex_);
  return share_.suspend();
}

Status SameProcess::resume_own() {
  std::lock_guard lock(mutex_);
  return share_.resume();
}

Status SameProcess::let_in(const Chunk& chunk, int device) { return chunk.grant_access(device); }

Result<MemoryConnector::RemoteChunk> SameProcess::open(int peer, const Origin& origin, Fd /*kept*/,
                                                       const Deadline& /*deadline*/) {
  return find_here(peer, origin);
}

}  // namespace niccolite::transport
