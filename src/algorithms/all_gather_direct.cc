// Direct all-gather: everybody sends its block to everybody.
//
//              push lane                    gather lane
//   rank 0   input -> b0, 1, 2, 3      b3 <- 3, b2 <- 2, b1 <- 1
//   rank 1   input -> b1, 2, 3, 0      b0 <- 0, b3 <- 3, b2 <- 2
//   rank 2   input -> b2, 3, 0, 1      b1 <- 1, b0 <- 0, b3 <- 3
//   rank 3   input -> b3, 0, 1, 2      b2 <- 2, b1 <- 1, b0 <- 0
//
// Claim: n instructions per rank and one network latency, the least possible; each rank reads its
// block once and sends it n - 1 times, the least possible; FIFO depth >= 1.
//
// Two lanes let the rounds overlap. They write different blocks. Ranks start with different peers
// (rank + 1, rank + 2, ...) so that no receiver is addressed by all at once. "direct_lane" has the
// same instructions in one lane: a small message has one round, nothing to overlap, and all warps
// are better used on one instruction at a time.
#include "algorithms/all_gather.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

void add_push(LaneBuilder& lane, int rank, int nranks) {
  lane.add({.source = input(0),
            .target = output(rank),
            .send_to = lane.to(peers_by_distance(rank, nranks, 1))});
}

void add_gather(LaneBuilder& lane, int rank, int nranks) {
  // Rank - 1 sends here first, rank + 1 last.
  for (const int owner : peers_by_distance(rank, nranks, -1))
    lane.add({.receive_from = lane.from(owner), .target = output(owner)});
}

Result<Schedule> build(const char* name, bool one_lane, int nranks, const Options& options) {
  TRY(check_options(name, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllGather, name);
  Builder builder({.collective = Collective::AllGather,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = nranks});
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

Result<Schedule> all_gather_direct(int nranks, const Options& options) {
  return build("direct", /*one_lane=*/false, nranks, options);
}

Result<Schedule> all_gather_direct_lane(int nranks, const Options& options) {
  return build("direct_lane", /*one_lane=*/true, nranks, options);
}

}  // namespace niccolite::algorithms
