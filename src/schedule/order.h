// In which order a schedule reduces. Pure: any thread.
#pragma once

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// True if every element is reduced once, by one instruction whose operands are the inputs of all
/// ranks in ascending order. Then a result depends on the inputs alone: not on the algorithm, on
/// the cut into blocks and chunks, or on the placement of ranks. Takes a whole schedule that
/// check() accepts. A schedule that only moves data reduces nothing, so it is true.
bool reduces_in_one_order(const Schedule& schedule);

}  // namespace niccolite::schedule
