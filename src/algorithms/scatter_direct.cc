// Direct scatter: the root sends each block to its receiver.
//
//   root 1
//   rank 1   b2 -> 2, b3 -> 3, b0 -> 0, b1 -> output
//   rank 0   rank 1 -> output
//   rank 2   rank 1 -> output
//   rank 3   rank 1 -> output
//
// Claim: n instructions at the root, 1 elsewhere; one network latency, the least possible; the root
// sends n - 1 blocks; FIFO depth >= 1. The own block comes last: nobody waits for it.
//
// "direct_lanes" has a lane for each instruction, so that no peer's block waits for another's.
#include "algorithms/lanes.h"
#include "algorithms/scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::Scatter, name);
  const int root = options.root;
  Builder builder({.collective = Collective::Scatter,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    if (rank != root) {
      LaneBuilder lane = spreader.of(kGatherLane);
      lane.add({.receive_from = lane.from(root), .target = output(0)});
      continue;
    }
    for (const int receiver : peers_by_distance(root, nranks, 1)) {
      LaneBuilder lane = spreader.of(kPushLane);
      lane.add({.source = input(receiver), .send_to = lane.to(receiver)});
    }
    spreader.of(kPushLane).add({.source = input(root), .target = output(0)});
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> scatter_direct(int nranks, const Options& options) {
  return build("direct", Lanes::ByPhase, nranks, options);
}

Result<Schedule> scatter_direct_lanes(int nranks, const Options& options) {
  return build("direct_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
