// A schedule as a picture: a column per rank with its workers side by side, time flowing downward,
// a box for each instruction at the step at which it can run (timeline.h), an arrow for each chunk
// that travels. Colours tell data apart. Self-contained SVG, for browsers and documents.
//
// One panel per channel. With more than 8 ranks it shows repeated parts once, and says which parts
// it omits (excerpt.h).
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// InvalidUsage when the schedule has no timeline.
Result<std::string> draw_svg(const Schedule& schedule);

}  // namespace niccolite::schedule
