// Direct all-to-all: everybody sends each block to its receiver.
//
//              push lane                                  gather lane
//   rank 0   b1 -> 1, b2 -> 2, b3 -> 3, b0 -> b0     b3 <- 3, b2 <- 2, b1 <- 1
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0, b1 -> b1     b0 <- 0, b3 <- 3, b2 <- 2
//   rank 2   b3 -> 3, b0 -> 0, b1 -> 1, b2 -> b2     b1 <- 1, b0 <- 0, b3 <- 3
//   rank 3   b0 -> 0, b1 -> 1, b2 -> 2, b3 -> b3     b2 <- 2, b1 <- 1, b0 <- 0
//
// Claim: 2n - 1 instructions per rank and one network latency, the least possible; each rank sends
// n - 1 blocks, the least possible; FIFO depth >= 1.
//
// Two lanes let the rounds overlap. At each place of the lists all ranks address different peers.
// The own block comes last: nobody waits for it. "direct_lanes" has a lane for each instruction.
#include "algorithms/all_to_all.h"
#include "algorithms/lanes.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::AllToAll, name);
  Builder builder(
      {.collective = Collective::AllToAll, .algorithm = name, .nranks = nranks, .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    for (const int receiver : peers_by_distance(rank, nranks, 1)) {
      LaneBuilder lane = spreader.of(kPushLane);
      lane.add({.source = input(receiver), .send_to = lane.to(receiver)});
    }
    spreader.of(kPushLane).add({.source = input(rank), .target = output(rank)});
    // Rank - 1 sends here first, rank + 1 last.
    for (const int sender : peers_by_distance(rank, nranks, -1)) {
      LaneBuilder lane = spreader.of(kGatherLane);
      lane.add({.receive_from = lane.from(sender), .target = output(sender)});
    }
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> all_to_all_direct(int nranks, const Options& options) {
  return build("direct", Lanes::ByPhase, nranks, options);
}

Result<Schedule> all_to_all_direct_lanes(int nranks, const Options& options) {
  return build("direct_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
