// The checker of lowered plans: proves by symbolic execution over all ranks that the plans which
// executors run are right, for any data, any timing, any number of rounds, channels and tiles.
// schedule/check.h proves the schedule, where all bytes go through slots; here every access is at
// its real place.
//
//  - start:    nobody touches a rank's buffers before its kernel runs: until then they are its
//              user's. Accesses after an advertisement, or after a chunk of that rank, come later;
//  - end:      every access to a rank's buffers, whoever's, comes before the end of one of its
//              workers: its user may then read, overwrite or free them. That worker has awaited the
//              end of this very connection: puts are announced, gets released;
//  - races:    if two accesses to a tile include a write, one comes before the other. Tiles that
//              workers of all channels share count, too: a taker knows only of steps that its own
//              channel announces;
//  - progress: no order of execution deadlocks, with FIFOs of `depth` slots;
//  - result:   each tile of every output holds the result of the collective;
//  - workers:  each has a plan that its form allows (check_workers()), as executors ask, too;
//  - aborts:   a rank whose kernel is aborted after any of its steps, while it has advertised
//              memory, ends, and nobody touches its buffers afterwards.
//
// Two steps are ordered by their worker, a chunk in a slot, an advertisement, an announcement, a
// request, or a release; never by credit, so that the proof holds for every depth from `depth` on.
//
// Why few executions are enough:
//  - one order of steps, and one round, for the reasons that schedule/check.h gives. An
//    advertisement precedes all rounds and a release succeeds them, which only strengthens the
//    order of two rounds' steps;
//  - two channels. Workers of different channels of a rank are ordered by nothing but the start and
//    the end of its kernel, and workers of two ranks by the messages of their own channels. A race
//    is between two accesses to one tile, by workers of one channel or of two; channels beyond two
//    add no pair that is not there already. Where no tiles are shared, channels have nothing in
//    common, and one is enough;
//  - some takers. For each pair of workers that share tiles, every choice of (same channel, other
//    channel; the tile's own, another) is among those tried: see takers() in check.cc.
//
// A failure is a Status (InvalidUsage) whose message names rank, channel, worker and instruction.
#pragma once

#include "lowering/plan.h"

namespace niccolite::lowering {

struct CheckOptions {
  int depth = 2;                // slots of each FIFO
  bool with_aborts = true;      // grows with the square of the number of steps
  std::vector<int> machines{};  // check_all(): of each rank; empty: one
};

/// Proves one plan, whose buffers can be reached or not as its capabilities said.
Status check(const AccessPlan& plan, const CheckOptions& options = {});

/// Proves the plans of `schedule` for each kind of mover, with gets and with pulls; and for buffers
/// that are reached on all ranks, on none, on all but one, and on some, as `seed` says.
Status check_all(const schedule::Schedule& schedule, const CheckOptions& options = {},
                 uint32_t seed = 1);

}  // namespace niccolite::lowering
