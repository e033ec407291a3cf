// Two-shot all-reduce: rank b owns block b. Everybody pushes each block to its owner, owners fold,
// and push the sums to all.
//
//              push lane                fold lane                            gather lane
//   rank 0   b1 -> 1, b2 -> 2     b0: 0 + 1 + 2 -> output, 1, 2     b2 <- 2, b1 <- 1 -> output
//   rank 1   b2 -> 2, b0 -> 0     b1: 0 + 1 + 2 -> output, 2, 0     b0 <- 0, b2 <- 2 -> output
//   rank 2   b0 -> 0, b1 -> 1     b2: 0 + 1 + 2 -> output, 0, 1     b1 <- 1, b0 <- 0 -> output
//
// Claim: 2n - 1 instructions per rank but only two network latencies; each rank sends 2(n - 1)/n of
// the data, the least possible; FIFO depth >= 1. Each block is folded once, by its owner, in
// ascending rank order in one instruction, so results are bitwise equal on all ranks and no partial
// sum is ever rounded.
//
// Three lanes let the rounds overlap: while one round is folded, the next is pushed and the last
// one gathered. The lanes share buffers in place, and causality keeps them apart: gather writes
// block p at rank r only when p's sum has arrived, which contains what r's push read there.
// "two_shot_lanes" has a lane for each instruction, which the same causality keeps apart. An owner
// may then read block b of all inputs itself, fold, and store the sums to all: it reads each
// element before it sends what replaces it.
//
// Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004, with both
// halves done directly.
#include "algorithms/all_reduce.h"
#include "algorithms/lanes.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

// Two connections from each rank to each other.
constexpr int kPush = 0;  // inputs, to the block's owner
constexpr int kSums = 1;  // sums, from the block's owner

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::AllReduce, name);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    for (const int owner : peers_by_distance(rank, nranks, 1)) {
      LaneBuilder lane = spreader.of(kPushLane);
      lane.add({.source = input(owner), .send_to = lane.to(owner, kPush)});
    }
    LaneBuilder fold = spreader.of(kFoldLane);
    fold.add({.receive_from = fold.from(peers_ascending(rank, nranks), kPush),
              .source = input(rank),
              .source_position = rank,  // behind the `rank` peers that come before it
              .reduce = true,
              .target = output(rank),
              .send_to = fold.to(peers_by_distance(rank, nranks, 1), kSums),
              .finish = true});
    // Owner rank - 1 sends here first, rank + 1 last.
    for (const int owner : peers_by_distance(rank, nranks, -1)) {
      LaneBuilder lane = spreader.of(kGatherLane);
      lane.add({.receive_from = lane.from(owner, kSums), .target = output(owner)});
    }
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> all_reduce_two_shot(int nranks, const Options& options) {
  return build("two_shot", Lanes::ByPhase, nranks, options);
}

Result<Schedule> all_reduce_two_shot_lanes(int nranks, const Options& options) {
  return build("two_shot_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
