// A schedule as a page that plays it: which blocks hold whose contributions, step by step. The page
// is one HTML file that loads nothing. Pure: any thread.
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace niccolite::schedule_command {

/// InvalidUsage when the form of `schedule` is wrong or it waits for itself, or it has more ranks
/// or instructions than a page shows.
Result<std::string> animate(const schedule::Schedule& schedule);

}  // namespace niccolite::schedule_command
