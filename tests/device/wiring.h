// The connections of all ranks of a schedule in one address space: where they lie in the memory of
// each rank, and the addresses of every port. For tests and benchmarks of executors.
#pragma once

#include <span>
#include <vector>

#include "executor/launch.h"

namespace niccolite::device_test {

class Wiring {
 public:
  Wiring(const std::vector<executor::Program>& programs, const executor::FifoShape& shape);

  /// Memory that `rank` needs for its ends, all zero at first.
  size_t bytes(int rank) const { return ranks_[static_cast<size_t>(rank)].bytes; }
  /// The ports of `rank`, when `memories[r]` is the memory of rank r.
  std::vector<executor::PortAddress> ports(int rank, std::span<std::byte* const> memories) const;

 private:
  struct End {
    size_t control;  // offsets in the rank's memory
    size_t slots;    // of a receiver
    bool is_send;
    int peer;
    size_t peer_port;
  };
  struct Rank {
    size_t bytes = 0;
    std::vector<End> ends;  // by port
  };
  std::vector<Rank> ranks_;
};

}  // namespace niccolite::device_test
