#include "comm/p2p_level.h"

#include <atomic>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::comm {

using topology::PathType;

bool forbids_peer_access(const std::function<PathType()>& distance) {
  if (parameters::p2p_disable() == 1) return true;
  const std::string& text = parameters::p2p_level();
  if (text.empty()) return false;
  const Result<PathType> level = topology::path_type_from(text);
  if (!level.is_ok()) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true, std::memory_order_relaxed))  // nothing depends on it
      LOG(Warn, Env, "NCCL_P2P_LEVEL={}: none of LOC, NVL, PIX, PXB, PHB, SYS: ignored", text);
    return false;
  }
  return level.value() == PathType::LOC || distance() > level.value();
}

}  // namespace niccolite::comm
