// Trial: the patterns by which queue pairs are tried before they carry data. A NIC, its driver or
// an IOMMU may lose or change bytes without an error, and results would be wrong. For each queue
// pair, at each end:
//
//   this end                                the peer
//   RDMA write of the pattern          -->  its place for this end's patterns
//   RDMA read of the same bytes        <--  (the peer's cores take no part)
//   compares what came with the pattern
//
// Memory of GPUs is tried in the same way, at both ends; the GPU copies the patterns there and
// back, because cores may not reach it. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/net/network.h"

namespace niccolite::transport::net::verbs {

class Trial {
 public:
  static constexpr uint32_t kBytes = 8192;  // of a pattern: several packets

  /// `memory` has bytes_for(queue_pairs), for as long as the trial. The patterns of the peer come
  /// first in it. `of_gpu`: that it is of; null: it is the host's.
  Trial(size_t queue_pairs, std::byte* memory, const DirectMemory* of_gpu = nullptr)
      : count_(queue_pairs), memory_(memory), of_gpu_(of_gpu), made_(queue_pairs * kBytes) {}
  static size_t bytes_for(size_t queue_pairs) { return 3 * queue_pairs * kBytes; }

  std::byte* data() const { return memory_; }
  /// Returns where the peer has its place for a queue pair's pattern.
  static uint64_t place_at_peer(uint64_t peer, size_t number) { return peer + number * kBytes; }

  /// Makes a new pattern for a queue pair; what comes back goes to echo().
  Result<std::byte*> make_pattern(size_t number);
  std::byte* echo(size_t number) { return memory_ + (2 * count_ + number) * kBytes; }
  /// Says how the bytes that came back differ from the pattern; nothing: they do not.
  Result<std::optional<std::string>> difference(size_t number);

 private:
  std::byte* pattern(size_t number) { return memory_ + (count_ + number) * kBytes; }

  Status store(std::byte* to, std::span<const std::byte> from) const;

  const size_t count_;
  std::byte* const memory_;  // of the peer; own patterns; what came back: by queue pair
  const DirectMemory* const of_gpu_;
  std::vector<std::byte> made_;  // own patterns
};

}  // namespace niccolite::transport::net::verbs
