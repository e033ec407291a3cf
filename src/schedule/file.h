// Schedules as files: JSON that people and programs can write, read back as it was written.
// docs/schedule-file.md describes the format. Thread safety: functions of values.
#pragma once

#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// The whole of `schedule`, one instruction a line.
std::string to_file(const Schedule& schedule);

/// The schedule that `text` holds. The form is read, nothing is proved: check() does that.
/// InvalidArgument names the line and the field: malformed JSON, an unknown or missing field, a
/// value out of its range (ranks, blocks and indices of connections included).
Result<Schedule> from_file(std::string_view text);

}  // namespace niccolite::schedule
