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
// The own block comes last: nobody waits for it. "direct_lane" has the same instructions in one
// lane: a small message has one round, nothing to overlap, and all warps are better used on one
// instruction at a time.
#include "algorithms/all_to_all.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

void add_push(LaneBuilder& lane, int rank, int nranks) {
  for (const int receiver : peers_by_distance(rank, nranks, 1))
    lane.add({.source = input(receiver), .send_to = lane.to(receiver)});
  lane.add({.source = input(rank), .target = output(rank)});
}

void add_gather(LaneBuilder& lane, int rank, int nranks) {
  // Rank - 1 sends here first, rank + 1 last.
  for (const int sender : peers_by_distance(rank, nranks, -1))
    lane.add({.receive_from = lane.from(sender), .target = output(sender)});
}

Result<Schedule> build(const char* name, bool one_lane, int nranks, const Options& options) {
  TRY(check_options(name, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllToAll, name);
  Builder builder(
      {.collective = Collective::AllToAll, .algorithm = name, .nranks = nranks, .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) {
    const auto add_lane = [&](size_t kind) {
      return builder.add_lane(rank, /*channel=*/0, one_lane ? 1 : options.weights[kind]);
    };
    LaneBuilder push = add_lane(kPushLane);
    add_push(push, rank, nranks);
    LaneBuilder gather = one_lane ? push : add_lane(kGatherLane);
    add_gather(gather, rank, nranks);
  }
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> all_to_all_direct(int nranks, const Options& options) {
  return build("direct", /*one_lane=*/false, nranks, options);
}

Result<Schedule> all_to_all_direct_lane(int nranks, const Options& options) {
  return build("direct_lane", /*one_lane=*/true, nranks, options);
}

}  // namespace niccolite::algorithms
