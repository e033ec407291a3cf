// Rings: orders in which data goes from rank to rank, one pattern channel each.
#pragma once

#include <vector>

#include "algorithms/options.h"

namespace niccolite::algorithms {

/// One rank's place on one ring.
class Seat {
 public:
  Seat(const std::vector<int>& ring, int position, int channel)
      : ring_(&ring), position_(position), channel_(channel) {}

  int channel() const { return channel_; }
  /// Number of hops from the ring's first rank, modulo n.
  int position(int hops_ahead = 0) const;
  /// The rank that sits here, or so many hops ahead (negative: behind).
  int rank(int hops_ahead = 0) const;
  /// Hops from `rank` to here.
  int hops_from(int rank) const;

 private:
  const std::vector<int>* ring_;  // the caller's
  int position_;
  int channel_;
};

/// The rings that `options` names, or else the one in rank order. InvalidArgument when one does not
/// name each rank once.
Result<std::vector<std::vector<int>>> rings_of(int nranks, const Options& options);

/// The seats whose workers are to be built, by ring and position. `rings` must outlive them.
std::vector<Seat> seats_to_build(const std::vector<std::vector<int>>& rings,
                                 const Options& options);

}  // namespace niccolite::algorithms
