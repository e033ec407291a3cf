// Reads execution plans of MSCCL++: JSON of puts, gets, reductions, signals, packets, barriers and
// semaphores. Thread safety: functions of values.
#pragma once

#include <string_view>

#include "importers/flow.h"

namespace niccolite::importers {

/// Executes the plan symbolically: a thread block does its operations in order, signals, packets,
/// barriers and semaphores order the operations of several. A pipeline is done once, with all of
/// its data. Operations that several thread blocks share cut chunks into as many parts.
///
/// InvalidArgument with the line: no plan, a field or an operation that is not known, switch
/// channels. InvalidUsage: a deadlock, with the operations that wait; a race, with both operations.
Result<Flow> read_mscclpp_json(std::string_view text);

}  // namespace niccolite::importers
