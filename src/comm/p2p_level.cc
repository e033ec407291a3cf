#include "comm/p2p_level.h"

#include <atomic>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::comm {

using topology::PathType;

std::optional<PathType> level_of(const char* variable, const std::string& text,
                                 std::atomic<bool>& told) {
  if (text.empty()) return std::nullopt;
  const Result<PathType> level = topology::path_type_from(text);
  if (level.is_ok()) return level.value();
  if (!told.exchange(true, std::memory_order_relaxed))  // nothing depends on it
    LOG(Warn, Env, "{}={}: none of LOC, NVL, PIX, PXB, PHB, SYS: ignored", variable, text);
  return std::nullopt;
}

bool forbids_peer_access(const std::function<PathType()>& distance) {
  if (parameters::p2p_disable() == 1) return true;
  static std::atomic<bool> told{false};
  const std::optional<PathType> level = level_of("NCCL_P2P_LEVEL", parameters::p2p_level(), told);
  return level && (*level == PathType::LOC || distance() > *level);
}

}  // namespace niccolite::comm
