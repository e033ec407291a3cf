// The connections of all ranks of a schedule in one address space: where they lie in the memory of
// each rank, and the addresses of every port. For tests and benchmarks of executors.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "executor/launch.h"

namespace niccolite::device_test {

class Wiring {
 public:
  Wiring(const std::vector<executor::Program>& programs, const executor::FifoShape& shape);

  /// Memory that `rank` needs for its ends, all zero at first.
  size_t bytes(int rank) const { return bytes_[static_cast<size_t>(rank)]; }
  /// The ports of `rank`, when `memories[r]` is the memory of rank r.
  std::vector<executor::PortAddress> ports(int rank, std::span<std::byte* const> memories) const;

 private:
  /// One for each sender, receiver and tag: pattern channels share it, over FIFO channels of their
  /// own. Offsets in the memory of either end.
  struct Connection {
    size_t sender_control;
    size_t receiver_control;
    size_t slots;  // the receiver's
  };
  std::map<std::tuple<int, int, int>, Connection> connections_;
  std::vector<size_t> bytes_;                       // by rank
  std::vector<std::vector<executor::Port>> ports_;  // by rank
};

}  // namespace niccolite::device_test
