// Direct gather: everybody sends its block to the root.
//
//   root 1
//   rank 1   input -> b1, b2 <- 2, b3 <- 3, b0 <- 0
//   rank 0   input -> 1
//   rank 2   input -> 1
//   rank 3   input -> 1
//
// Claim: n instructions at the root, 1 elsewhere; one network latency, the least possible; each
// rank but the root sends its block once; FIFO depth >= 1.
//
// "direct_lanes" has a lane for each instruction, so that no peer's block waits for another's.
#include "algorithms/gather.h"
#include "algorithms/lanes.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::Gather, name);
  const int root = options.root;
  Builder builder({.collective = Collective::Gather,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    if (rank != root) {
      LaneBuilder lane = spreader.of(kPushLane);
      lane.add({.source = input(0), .send_to = lane.to(root)});
      continue;
    }
    spreader.of(kGatherLane).add({.source = input(0), .target = output(root)});
    for (const int sender : peers_by_distance(root, nranks, 1)) {
      LaneBuilder lane = spreader.of(kGatherLane);
      lane.add({.receive_from = lane.from(sender), .target = output(sender)});
    }
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> gather_direct(int nranks, const Options& options) {
  return build("direct", Lanes::ByPhase, nranks, options);
}

Result<Schedule> gather_direct_lanes(int nranks, const Options& options) {
  return build("direct_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
