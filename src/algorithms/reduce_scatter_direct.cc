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
// read. "direct_lane" has the same instructions in one lane: a small message has one round, nothing
// to overlap, and all warps are better used on one instruction at a time.
#include "algorithms/reduce_scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

void add_push(LaneBuilder& lane, int rank, int nranks) {
  for (const int owner : peers_by_distance(rank, nranks, 1))
    lane.add({.source = input(owner), .send_to = lane.to(owner)});
}

void add_fold(LaneBuilder& lane, int rank, int nranks) {
  lane.add({.receive_from = lane.from(peers_ascending(rank, nranks)),
            .source = input(rank),
            .source_position = rank,  // behind the `rank` peers that come before it
            .reduce = true,
            .target = output(0),
            .finish = true});
}

Result<Schedule> build(const char* name, bool one_lane, int nranks, const Options& options) {
  TRY(check_options(name, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::ReduceScatter, name);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    const auto add_lane = [&](size_t kind) {
      return builder.add_lane(rank, /*channel=*/0, one_lane ? 1 : options.weights[kind]);
    };
    LaneBuilder push = add_lane(kPushLane);
    add_push(push, rank, nranks);
    LaneBuilder fold = one_lane ? push : add_lane(kFoldLane);
    add_fold(fold, rank, nranks);
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> reduce_scatter_direct(int nranks, const Options& options) {
  return build("direct", /*one_lane=*/false, nranks, options);
}

Result<Schedule> reduce_scatter_direct_lane(int nranks, const Options& options) {
  return build("direct_lane", /*one_lane=*/true, nranks, options);
}

}  // namespace niccolite::algorithms
