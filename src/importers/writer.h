// Writes the schedule of a program whose order is known. Thread safety: functions of values.
#pragma once

#include "importers/order.h"
#include "importers/places.h"

namespace niccolite::importers {

/// As the program is written, unless this needs more FIFO slots than the usual connection has, and
/// block by block takes fewer. InvalidUsage, with the line: a step reads what nobody wrote, or has
/// a form that no schedule has.
Result<schedule::Schedule> write_schedule(const Program& program, const Order& order,
                                          const Places& places);

}  // namespace niccolite::importers
