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

/// The schedule of `messages`; the numbers of blocks are counted in their order. With
/// Options::only_rank those that the rank neither sends nor receives are left out, so it is enough
/// to name its own; blocks of other ranks are then -1.
Result<schedule::Schedule> point_to_point(int nranks, std::span<const Envelope> messages,
                                          const Options& options = {});

/// Messages go over pattern channels by their distance, this many distances each: both ends know
/// the channel without asking, and none has more than 7 lanes to send and 7 to receive: a CTA has a
/// warp for each, and one to look after their connections.
inline constexpr int kDistancesOfChannel = 7;

}  // namespace niccolite::algorithms
