// Requests (Simple): a fold that has taken what its peers lend (offer.h) may let them send it, unit
// by unit, instead of reading it over the link.
//
// Loads take room on a link twice: GPUs that read from each other move 335 GB/s, GPUs that store to
// each other 356 (H200, docs/design/0018). But who stores must know which part the fold is at, and
// where there is room for it. So the receiver asks for it:
//
//   receiver: folds                             sender: lends
//   claims unit u of its block
//   --- requests[t % n]: u ----------------->   takes it (leaves 0), stores unit u to place t % n
//   waits          <------ delivered: t + 1 --  of the connection's slots
//   folds it, claims the next, requests[(t + n) % n] ...
//   is done with the block: gives credit for all steps, as a receiver that reads (offer.h)
//
// `t` counts a channel's requests of one operation, `n` are those that may be under way: the
// request for the place of an earlier one is made when that has been read, so that it is the
// credit, too. Nothing of this outlives the operation: a sender leaves no request behind, and the
// receiver sets `delivered` back to 0 when all that it requested is there. (Not if the operation is
// aborted; the connection is closed then, fifo.h.)
//
// Whether to request or to read is the receiver's choice, of each operation, among senders that
// serve requests (offer::serves): those whose lane has bulk copies for it.
#pragma once

#include <cstdint>

#include "executor/protocol/fifo.h"

namespace niccolite::executor::request {

inline constexpr uint32_t kNone = 0;  // not made yet, or taken

constexpr uint32_t of(uint32_t unit) { return unit + 1; }
constexpr uint32_t unit_in(uint32_t request) { return request - 1; }

/// Requests that may be under way at once for units of this length, which is not 0: one for each
/// place that the slots of a channel have. A power of two, or 0.
constexpr uint32_t most_of(const FifoShape& shape, uint32_t unit_bytes) {
  const uint32_t places = shape.depth * shape.slot_bytes / unit_bytes;
  uint32_t most = kMostRequests;
  while (most > places) most /= 2;
  return most;
}

}  // namespace niccolite::executor::request
