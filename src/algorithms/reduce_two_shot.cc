// Two-shot reduce: every rank but the root owns a block. Everybody pushes each block to its owner;
// owners fold, and push the sums to the root.
//
//   root 0        push lane                  fold lane
//   rank 0   b0 -> 1, b1 -> 2, b2 -> 3   (gather: b0 <- 1, b1 <- 2, b2 <- 3 -> output)
//   rank 1   b1 -> 2, b2 -> 3            b0: 0 + 1 + 2 + 3 -> 0
//   rank 2   b2 -> 3, b0 -> 1            b1: 0 + 1 + 2 + 3 -> 0
//   rank 3   b0 -> 1, b1 -> 2            b2: 0 + 1 + 2 + 3 -> 0
//
// Claim: n - 1 blocks and instructions per rank, twice as many at the root; two network latencies;
// each rank sends the data once, and the root receives them once, the least possible (the root of
// the direct reduce takes n - 1 times the data); FIFO depth >= 1. Each block is folded once, in
// ascending rank order in one instruction: no partial sum is ever rounded, and the result does not
// depend on the root.
//
// The root folds nothing, though it could own a block, too: it would receive n - 1 inputs of that
// block beside the sums of the others, more than any other rank.
//
// In place is safe: block b of the root's output gets the sum of block b of its input, and so comes
// after that has been read. "two_shot_lanes" has a lane for each instruction, which the same
// causality keeps apart. An owner may then read its block of all inputs itself, fold, and store the
// sums to the root: it reads each element before it sends what replaces it.
//
// Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004 (reduce), with
// both halves done directly and without the root among those that fold.
#include "algorithms/lanes.h"
#include "algorithms/owners.h"
#include "algorithms/reduce.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

// Connections to the block's owner, and from it to the root.
constexpr int kPush = 0;
constexpr int kSums = 1;

void add_pushes(LaneSpreader& spreader, const Owners& owners, const std::vector<int>& to) {
  for (const int owner : to) {
    LaneBuilder lane = spreader.of(kPushLane);
    lane.add({.source = input(owners.block_of(owner)), .send_to = lane.to(owner, kPush)});
  }
}

Result<Schedule> build(const char* name, Lanes lanes, int nranks, const Options& options) {
  TRY(check_options(name, nranks, max_ranks_of(lanes), options));
  if (nranks == 1) return alone(Collective::Reduce, name);
  const Owners owners{options.root, nranks};
  // By phase, two owners' push lanes could lend: each holds one instruction. The root's does not.
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = owners.count(),
                   .root = options.root});
  for (const int rank : ranks_to_build(nranks, options)) {
    LaneSpreader spreader(builder, rank, nranks, lanes, options);
    if (rank == options.root) {
      const std::vector<int> all = peers_by_distance(rank, nranks, 1);
      add_pushes(spreader, owners, all);
      for (const int owner : all) {
        LaneBuilder lane = spreader.of(kGatherLane);
        lane.add(
            {.receive_from = lane.from(owner, kSums), .target = output(owners.block_of(owner))});
      }
      continue;
    }
    const int own = owners.block_of(rank);
    add_pushes(spreader, owners, owners.others(own, 1));
    LaneBuilder fold = spreader.of(kFoldLane);
    fold.add({.receive_from = fold.from(peers_ascending(rank, nranks), kPush),
              .source = input(own),
              .source_position = rank,  // behind the `rank` peers that come before it
              .reduce = true,
              .send_to = fold.to(options.root, kSums),
              .finish = true});
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> reduce_two_shot(int nranks, const Options& options) {
  return build("two_shot", Lanes::ByPhase, nranks, options);
}

Result<Schedule> reduce_two_shot_lanes(int nranks, const Options& options) {
  return build("two_shot_lanes", Lanes::ByInstruction, nranks, options);
}

}  // namespace niccolite::algorithms
