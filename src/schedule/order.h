// In which order a schedule reduces. Pure: any thread.
#pragma once

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// Is every element reduced once, by one instruction whose operands are the inputs of all ranks in
/// ascending order? Then a result depends on the inputs alone: not on the algorithm, on what was
/// cut into which blocks and chunks, or on where ranks run. Of the whole schedule, which check()
/// accepts; a schedule that only moves data reduces nothing, and is such a one.
bool reduces_in_one_order(const Schedule& schedule);

}  // namespace niccolite::schedule
