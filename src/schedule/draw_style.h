// Words and colours of the pictures of schedules. For draw_svg.cc and commands.
#pragma once

#include <string>

#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace niccolite::schedule {

/// The look of a piece of data. legend_of() the collective explains its label.
struct Style {
  std::string color;  // dark enough for white letters on it
  std::string label;  // "2", or "0:2" where one number does not name it
};
Style style_of(const Schedule& schedule, const Data& data);

/// Returns the meaning of labels: "block", "rank that contributed it", ...
const char* legend_of(Collective collective);

/// "block 2", "rank 1's block", "rank 0's block 2".
std::string describe_data(const Schedule& schedule, const Data& data);

/// Describes a schedule's cost: "4 ranks, 4 blocks; 7 steps, 6 network latencies; each rank sends
/// 1.5 times the data". The data are the buffer whose parts the blocks are, or else all ranks'
/// blocks.
std::string describe_cost(const Schedule& schedule, const Timeline& timeline);

}  // namespace niccolite::schedule
