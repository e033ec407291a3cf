// Spreading: which workers hold the instructions of a schedule, decided when it is lowered. An
// algorithm builds few workers, each with the instructions of one phase; a channel may have its
// warps divided otherwise. Pure functions.
#pragma once

#include <cstdint>

#include "schedule/schedule.h"

namespace niccolite::lowering {

enum class Spread : uint8_t {
  AsBuilt,        // the algorithm's own workers. In a worker of several instructions, rounds of
                  // different workers overlap, but each instruction waits for those before it
  ByInstruction,  // a worker for each: an instruction waits for its own data and nothing else, and
                  // has the direct ways of workers of one instruction (routes.h)
  ByHalves,       // two workers in the place of one, each with half of every block and connections
                  // of its own: while one publishes a chunk, the other moves one
};

/// Returns the schedule, or one rank's part of it, with its workers spread so. The checker proves
/// the result like any schedule. InvalidArgument for ByInstruction where two instructions use one
/// connection, whose chunks then have no order, and for ByHalves where blocks are not parts of one
/// buffer, or connections have other tags than 0.
Result<schedule::Schedule> spread(schedule::Schedule schedule, Spread how);

}  // namespace niccolite::lowering
