// The checker: proves by symbolic execution over all ranks that a schedule is right, for any data,
// any timing, any number of rounds and any FIFO depth from CheckOptions::depth on.
//
//  - form:     indices in range, each connection used by one worker at either end with equal
//              numbers of sends and receives, operands and destinations present, copy instructions
//              with exactly one operand, reductions only where the collective reduces, root-only
//              buffers used at the root only; where blocks are parts of one buffer, all
//              operands and destinations of an instruction in the same block; each message
//              moved once, by instructions that move nothing else;
//  - progress: with FIFOs of `depth` slots no order of execution deadlocks (an instruction holds
//              its receive slots until it has credit for all its sends, as the executors do);
//  - races:    no two workers touch a block without an order between them through connections when
//              at least one writes;
//  - result:   after every worker has finished, each output block holds exactly the result of the
//              collective: the right block of the right rank, or every rank's contribution, each
//              once, finished exactly once; and unless the schedule admits partial sums, each
//              result is one reduction of the ranks' inputs in ascending rank order.
//
// All bytes go through slots here; lowering/check.h proves the lowered plan, which really runs. The
// proof is made for different buffers of input and output and, if the collective has it, for one
// buffer of both (in place). Channels work on disjoint data and connections, so each is proved by
// itself.
//
// One round and one order of execution are enough:
//  - Order. A worker that can run its next instruction stays able to, because no other worker takes
//    from its receive FIFOs or fills its send FIFOs. So runnable instructions of different workers
//    can be swapped without changing where the execution ends (the network is determinate, as
//    Kahn's process networks are). Either every order finishes, or every order stops at the same
//    instructions. Values are determinate too once there are no races.
//  - Rounds. Sends and receives are equal in number on each connection, so a finished round leaves
//    every FIFO empty, and the next may start as the first did. So one order that finishes all
//    rounds exists, hence all orders do. Rounds touch different elements, so a race needs two
//    accesses of one round. An order between two such accesses passes through instructions of that
//    round only, as no wait refers to a later round.
//  - Depth. More slots only remove waits for credit. Races are judged by the order of the data
//    alone, never by credit, so the judgement holds for every depth.
//
// A failure is a Status (InvalidUsage) whose message names rank, channel, worker and instruction.
#pragma once

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct CheckOptions {
  int depth = 2;  // slots of each FIFO
};

/// Proves `schedule`, which must hold all ranks. Costs about the number of instructions times the
/// number of ranks.
Status check(const Schedule& schedule, const CheckOptions& options = {});

/// The fewest slots of each FIFO with which check() proves `schedule`; its failure when it does so
/// with no number of slots.
Result<int> least_depth(const Schedule& schedule);

}  // namespace niccolite::schedule
