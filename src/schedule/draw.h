// A schedule as text for people: one line per instruction with its block, its operands, and the
// destinations of the result.
//
//   rank 0, channel 0, worker 0
//     0  block 2  input                   -> rank 1
//     2  block 0  finish(input + rank 2)  -> output, rank 1
//
// Operands stand in reduction order. A connection is named by its peer, with its tag when that is
// not 0: "rank 3/1". Where blocks are not parts of one buffer, each is named in its place instead:
// "input 2", "output 0". Runs of neighbouring ranks are drawn together: "ranks 1..7". It draws
// every schedule, also a broken one, because a checker's message is best read beside the picture.
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace niccolite::schedule {

std::string draw_text(const Schedule& schedule);

}  // namespace niccolite::schedule
