// Direct reduce-scatter: everybody sends each block to its owner, who folds them.
//
//              push lane                     fold lane
//   rank 0   b1 -> 1, b2 -> 2, b3 -> 3    b0: 0 + 1 + 2 + 3 -> output
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0    b1: 0 + 1 + 2 + 3 -> output
//   rank 2   b3 -> 3, b0 -> 0, b1 -> 1    b2: 0 + 1 + 2 + 3 -> output
//   rank 3   b0 -> 0, b1 -> 1, b2 -> 2    b3: 0 + 1 + 2 + 3 -> output
//
// Claim: n instructions per rank and one network latency, the least possible; each rank sends n - 1
// blocks, the least possible; FIFO depth >= 1. Each block is folded once, in ascending rank order
// in one instruction: no partial sum is ever rounded.
//
// Two lanes let the rounds overlap. In place, the fold writes the one block that the push does not
// read. "direct_lanes" has a lane for each instruction.
#include "algorithms/lanes.h"
#include "algorithms/reduce_scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::ReduceScatter, name);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    for (const int owner : peers_by_distance(rank, nranks, 1)) {
      LaneBuilder lane = spreader.of(kPushLane);
      lane.add({.source = input(owner), .send_to = lane.to(owner)});
    }
    LaneBuilder fold = spreader.of(kFoldLane);
    fold.add({.receive_from = fold.from(peers_ascending(rank, nranks)),
              .source = input(rank),
              .source_position = rank,  // behind the `rank` peers that come before it
              .reduce = true,
              .target = output(0),
              .finish = true});
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> reduce_scatter_direct(int nranks, const Options& options) {
  return build("direct", Lanes::ByPhase, nranks, options);
}

Result<Schedule> reduce_scatter_direct_lanes(int nranks, const Options& options) {
  return build("direct_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
