// Pulls (Simple): a reduction that has taken its peers' exposed memory (advertisement.h) may let
// them send the data, tile by tile, instead of reading them over the link.
//
// Loads take room on a link twice: GPUs that read from each other move 335 GB/s, GPUs that store to
// each other 356 (H200). But the storing end must know which part the reduction is at, and where
// there is room for it. So the receiver asks for it:
//
//   receiver: reduces                        sender: exposes
//   takes tile u of its block
//   --- pulls[t % n]: u ------------------>  takes it (leaves 0), stores tile u to place t % n of
//   waits        <------ delivered: t + 1 -- the connection's slots
//   reduces it, takes the next, pulls[(t + n) % n] ...
//   is done with the block: gives credit for all steps, as a receiver that reads (advertisement.h)
//
// `t` counts a channel's pulls of one operation, at most `n` pulls are under way. The receiver
// reads a tile before it makes the next pull for the same place, so that the pull is the credit,
// too. No pull outlives the operation: a sender leaves none behind, and the receiver sets
// `delivered` back to 0 when all its tiles have come. (An aborted operation does not, and the
// connection is closed then, fifo.h.)
//
// The receiver chooses between pulling and reading for each operation, among senders that serve
// pulls (advertisement::serves): their workers have bulk copies for them.
#pragma once

#include <cstdint>

#include "executor/protocol/fifo.h"

namespace niccolite::executor::pull {

inline constexpr uint32_t kNone = 0;  // not made yet, or taken

constexpr uint32_t of(uint32_t tile) { return tile + 1; }
constexpr uint32_t tile_in(uint32_t pull) { return pull - 1; }

/// Pulls that may be under way at once for tiles of this length, which is not 0: one for each
/// place that the slots of a channel have. A power of two, or 0.
constexpr uint32_t most_of(const FifoShape& shape, uint32_t tile_bytes) {
  const uint32_t places = shape.depth * shape.slot_bytes / tile_bytes;
  uint32_t most = kMostPulls;
  while (most > places) most /= 2;
  return most;
}

}  // namespace niccolite::executor::pull
