#include "algorithms/ring.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::algorithms {
namespace {

using schedule::at;
using schedule::length;

Status check_ring(const std::vector<int>& ring, int nranks) {
  std::vector<bool> seen(static_cast<size_t>(nranks));
  for (const int rank : ring) {
    if (rank < 0 || rank >= nranks || seen[static_cast<size_t>(rank)])
      return Status::invalid_argument("a ring of {} ranks names rank {}, twice or out of range",
                                      nranks, rank);
    seen[static_cast<size_t>(rank)] = true;
  }
  if (length(ring) != nranks)
    return Status::invalid_argument("a ring names {} of {} ranks", ring.size(), nranks);
  return Status::ok();
}

}  // namespace

int Seat::position(int hops_ahead) const {
  const int n = length(*ring_);
  return ((position_ + hops_ahead) % n + n) % n;
}

int Seat::rank(int hops_ahead) const { return at(*ring_, position(hops_ahead)); }

int Seat::hops_from(int rank) const {
  const auto found = std::find(ring_->begin(), ring_->end(), rank);
  return position(-static_cast<int>(found - ring_->begin()));
}

Result<std::vector<std::vector<int>>> rings_of(int nranks, const Options& options) {
  for (const std::vector<int>& ring : options.rings) TRY(check_ring(ring, nranks));
  if (!options.rings.empty()) return options.rings;
  return std::vector<std::vector<int>>{ranks_to_build(nranks, {})};
}

std::vector<Seat> seats_to_build(const std::vector<std::vector<int>>& rings,
                                 const Options& options) {
  std::vector<Seat> seats;
  for (int channel = 0; channel < length(rings); ++channel) {
    const std::vector<int>& ring = at(rings, channel);
    for (int position = 0; position < length(ring); ++position)
      if (!options.only_rank || *options.only_rank == at(ring, position))
        seats.emplace_back(ring, position, channel);
  }
  return seats;
}

}  // namespace niccolite::algorithms
