// Timeline: the step at which each instruction of a schedule can run if every instruction takes one
// step and FIFOs never fill, the data that the instruction handles, and the instructions for which
// it waits. For pictures and for the cost of a schedule in a few numbers. Pure: any thread.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// The content of a chunk: input block `block` of rank `owner`, or the sum of that block over some
/// ranks.
struct Data {
  static constexpr int kSum = -1;
  int owner;
  int block;
  friend bool operator==(const Data&, const Data&) = default;
};

struct Event {
  Position position;
  int step = 0;     // the first at which it can run
  int latency = 0;  // chunks that had to travel one after another before it
  Data data{};
  std::vector<int> causes{};  // the events that sent its chunks, in the order of receive_from
};

struct Timeline {
  std::vector<Event> events;  // an order in which they can run, one round
  int steps = 0;              // of the longest chain of instructions
  int latencies = 0;  // of the longest chain of chunks: network latencies of a small message
};

/// InvalidUsage when the form of `schedule` is wrong (check.h) or it waits for itself.
Result<Timeline> timeline(const Schedule& schedule);

/// Chunks of one block that `rank` sends in a round.
int blocks_sent(const Schedule& schedule, int rank);

}  // namespace niccolite::schedule
