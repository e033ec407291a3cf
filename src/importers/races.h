// Finds races of a program. Thread safety: functions of values.
#pragma once

#include "importers/order.h"
#include "importers/places.h"

namespace niccolite::importers {

/// InvalidUsage, with both lines: two steps of one rank touch a chunk, one of them writing, and
/// nothing orders them. `order` has run to its end.
Status check_races(const Program& program, const Order& order, const Places& places);

}  // namespace niccolite::importers
