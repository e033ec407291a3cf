// Demand: the load of an operation on the machine, read off its access plan: bytes that links and
// ranks carry, instructions that ranks carry out, and the chain of hops that a byte waits for.
// Prices of algorithms that nobody has measured are made of it. Pure: any thread.
#pragma once

#include <span>
#include <vector>

#include "lowering/plan.h"
#include "schedule/load.h"

namespace niccolite::lowering {

/// The chain that takes longest when data are few. A hop is a chunk's way to another rank.
struct Chain {
  int instructions = 0;
  int ends = 0;                       // connections that its instructions receive from or send to
  int slots = 0, puts = 0, gets = 0;  // hops inside machines, by their way
  int between = 0;                    // hops between machines

  int hops() const { return slots + puts + gets + between; }
};

/// Bytes that are read and written for each byte of the operation, as schedule::Load has them.
struct Moved {
  double slot_copies = 0, slot_reductions = 0;      // where an operand or a destination is a slot
  double direct_copies = 0, direct_reductions = 0;  // where none is

  double bytes() const { return slot_copies + slot_reductions + direct_copies + direct_reductions; }
};

/// The demand of one worker, which has a share of its channel's threads.
struct WorkerMoved {
  int channel = 0;
  double share = 1;  // by the workers' weights
  Moved moved;
};

/// The work of the rank that reads and writes most, whatever its share-out: where ranks are not
/// alike, another may have a slower worker. Data that a worker only advertises is read or written
/// by its peer.
struct Work {
  Moved moved;                           // by all workers
  std::vector<WorkerMoved> by_worker{};  // empty: nothing is known of workers
  int instructions = 0;                  // for a chunk
  int workers = 1;                       // of a channel, that read or write
  int slot_instructions = 0;  // of its longest worker that has slots: it waits in each of them
  double dynamic = 0;         // part of its workers whose tiles are dynamic
};

struct Demand {
  schedule::Load load;
  Chain chain;
  Work work;
  /// For the rank that has most: how often a chunk, or several at once over one connection, go to
  /// other machines, or come from there.
  int messages = 0;
};

/// Returns the demand of a whole plan. `machine_of_rank`: any numbers; empty: all ranks are on one
/// machine. InvalidUsage when the form of the schedule is wrong.
Result<Demand> demand_of(const AccessPlan& plan, std::span<const int> machine_of_rank);
/// Returns the demand where all bytes go through slots, which needs no plan.
Result<Demand> demand_of(const schedule::Schedule& schedule, std::span<const int> machine_of_rank);

}  // namespace niccolite::lowering
