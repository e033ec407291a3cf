// Point-to-point messages as a schedule: what the sends and receives of one group do together. Pure
// functions: ranks that know each other's messages agree on every connection. Any thread.
#pragma once

#include <span>

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

/// "From sender to receiver": one message; no pair of ranks may have two.
struct Envelope {
  int sender;
  int receiver;
};

/// Returns the schedule of `messages`; blocks are numbered in their order. With Options::only_rank,
/// messages that the rank neither sends nor receives are left out, so it is enough to name its own;
/// blocks of other ranks are then -1.
Result<schedule::Schedule> point_to_point(int nranks, std::span<const Envelope> messages,
                                          const Options& options = {});

/// Messages go over pattern channels by their distance, from the sender up to the receiver around
/// the ring of ranks: both ends know the channel without asking. The first has distance 0, which is
/// a copy, and 7 more, the others have 7: at most 15 workers, so that a CTA has a warp for each,
/// and one to look after their connections.
constexpr int channel_of_distance(int distance) {
  return distance <= 7 ? 0 : 1 + (distance - 8) / 7;
}

}  // namespace niccolite::algorithms
