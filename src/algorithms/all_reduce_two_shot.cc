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
// "two_shot_lane" has the same instructions in one lane: a small message has one round, nothing to
// overlap, and all warps are better used on one instruction at a time. Source: R. Rabenseifner,
// "Optimization of collective reduction operations", 2004, with both halves done directly.
#include <array>

#include "algorithms/all_reduce.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

// Two connections from each rank to each other.
constexpr int kPush = 0;  // inputs, to the block's owner
constexpr int kSums = 1;  // sums, from the block's owner

void add_push(LaneBuilder& lane, int rank, int nranks) {
  for (const int owner : peers_by_distance(rank, nranks, 1))
    lane.add({.source = input(owner), .send_to = lane.to(owner, kPush)});
}

void add_fold(LaneBuilder& lane, int rank, int nranks) {
  lane.add({.receive_from = lane.from(peers_ascending(rank, nranks), kPush),
            .source = input(rank),
            .source_position = rank,  // behind the `rank` peers that come before it
            .reduce = true,
            .target = output(rank),
            .send_to = lane.to(peers_by_distance(rank, nranks, 1), kSums),
            .finish = true});
}

void add_gather(LaneBuilder& lane, int rank, int nranks) {
  // Owner rank - 1 sends here first, rank + 1 last.
  for (const int owner : peers_by_distance(rank, nranks, -1))
    lane.add({.receive_from = lane.from(owner, kSums), .target = output(owner)});
}

Result<Schedule> build(const char* name, bool one_lane, int nranks, const Options& options) {
  TRY(check_options(name, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllReduce, name);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks});
  constexpr std::array kPhases{add_push, add_fold, add_gather};
  for (const int rank : ranks_to_build(nranks, options)) {
    if (one_lane) {
      LaneBuilder lane = builder.add_lane(rank);
      for (const auto add : kPhases) add(lane, rank, nranks);
      continue;
    }
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      LaneBuilder lane = builder.add_lane(rank, /*channel=*/0, options.weights[phase]);
      kPhases[phase](lane, rank, nranks);
    }
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> all_reduce_two_shot(int nranks, const Options& options) {
  return build("two_shot", /*one_lane=*/false, nranks, options);
}

Result<Schedule> all_reduce_two_shot_lane(int nranks, const Options& options) {
  return build("two_shot_lane", /*one_lane=*/true, nranks, options);
}

}  // namespace niccolite::algorithms
