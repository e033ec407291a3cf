// The checker: proves by symbolic execution over all ranks that a schedule is right, for any data and any timing.
//
//  - result:   after every lane has finished, each output block holds exactly the contributions the collective asks for,
//              each once, in ascending rank order if the schedule claims to fold that way, finished exactly once;
//  - progress: with FIFOs of `depth` slots no order of execution deadlocks, within a round and across rounds (an
//              instruction holds its receive slots until it has credit for all its sends, as the executors do);
//  - races:    no two lanes touch a block without an order between them through connections when at least one writes,
//              both when input and output are different buffers and when they are the same (in place);
//  - form:     indices in range, each connection used by one lane at either end with equal numbers of sends and
//              receives, operands and destinations present, copy instructions with exactly one operand.
//
// A failure is a Status whose message names rank, channel, lane and instruction.
#pragma once

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct CheckOptions {
  int depth = 2;   // slots of each FIFO
  int rounds = 3;  // rounds executed: more than `depth`, so that every slot is used again
};

Status check(const Schedule& schedule, const CheckOptions& options = {});

}  // namespace niccolite::schedule
