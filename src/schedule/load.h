// Load: the load of a schedule on the links inside machines, on the wires between them, and on its
// ranks. Pure: any thread.
#pragma once

#include <span>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// Bytes, for each byte of the operation: of the buffer that is cut into blocks, or of one block
/// where blocks are not parts of one buffer.
struct Load {
  double wire = 0;            // that the busiest machine sends to others, or gets from them
  double rail = 0;            // that the busiest rank does
  double link = 0;            // that the busiest rank sends to, or gets from, ranks of its machine
  double team = 0;            // the same of what goes by a team (lowering/demand.h)
  double engine = 0;          // that the busiest rank reads and writes: operands and destinations
  double machine_engine = 0;  // that all ranks of the busiest machine do
  int machine_instructions = 0;  // that all ranks of the busiest machine carry out for a chunk
  int blocks = 1;                // parts of the buffer that is cut
};

/// `machine_of_rank`: any numbers; empty: all ranks are on one machine.
Load load_of(const Schedule& schedule, std::span<const int> machine_of_rank);

}  // namespace niccolite::schedule
