// Scatter-gather broadcast: the root gives each other rank one block, and they give it to each
// other.
//
//   root 0        forward lane                       gather lane
//   rank 0   b0 -> output, 1; b1 -> output, 2; b2 -> output, 3
//   rank 1   b0: rank 0 -> output, 2, 3         b2 <- 3, b1 <- 2 -> output
//   rank 2   b1: rank 0 -> output, 3, 1         b0 <- 1, b2 <- 3 -> output
//   rank 3   b2: rank 0 -> output, 1, 2         b1 <- 2, b0 <- 1 -> output
//
// Claim: n - 1 blocks and as many instructions per rank; two network latencies; the root sends the
// data once, the least possible, the others (n - 2)/(n - 1) of it; FIFO depth >= 1.
//
// Two lanes let the rounds overlap: while the blocks of one round are gathered, those of the next
// are forwarded. They share nothing, as each block is written by one lane. Block i belongs to the
// rank i + 1 places behind the root. Source: M. Barnett et al., "Interprocessor collective
// communication library (InterCom)", 1994, with both halves done directly.
#include "algorithms/broadcast.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "scatter_gather";
// Connections from the root, and between the others.
constexpr int kScatter = 0;
constexpr int kGather = 1;

/// The ranks of a broadcast, as numbers of blocks.
struct Owners {
  int root;
  int nranks;

  int count() const { return nranks - 1; }
  int rank_of(int block) const { return (root + 1 + block) % nranks; }
  int block_of(int rank) const { return (rank - root - 1 + nranks) % nranks; }

  /// The other owners, in the order block + step, block + 2 * step, ...
  std::vector<int> others(int block, int step) const {
    std::vector<int> ranks;
    for (const int other : peers_by_distance(block, count(), step)) ranks.push_back(rank_of(other));
    return ranks;
  }
};

void add_scatter(LaneBuilder lane, const Owners& owners) {
  for (int block = 0; block < owners.count(); ++block)
    lane.add({.source = input(block),
              .target = output(block),
              .send_to = lane.to(owners.rank_of(block), kScatter)});
}

void add_forward(LaneBuilder lane, const Owners& owners, int block) {
  lane.add({.receive_from = lane.from(owners.root, kScatter),
            .target = output(block),
            .send_to = lane.to(owners.others(block, 1), kGather)});
}

void add_gather(LaneBuilder lane, const Owners& owners, int block) {
  // The owner before this one sends here first, the one after it last.
  for (const int owner : owners.others(block, -1))
    lane.add({.receive_from = lane.from(owner, kGather), .target = output(owners.block_of(owner))});
}

}  // namespace

Result<Schedule> broadcast_scatter_gather(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Broadcast, kName);
  const Owners owners{options.root, nranks};
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = owners.count(),
                   .root = options.root,
                   .landing_tags = owners.count() == 2 ? Tags{kScatter, kGather} : Tags{kScatter},
                   .passes_on = owners.count() > 1});
  const auto add_lane = [&](int rank, size_t kind) {
    return builder.add_lane(rank, /*channel=*/0, options.weights[kind]);
  };
  for (const int rank : ranks_to_build(nranks, options)) {
    if (rank == options.root) {
      add_scatter(add_lane(rank, kPushLane), owners);
      continue;
    }
    const int block = owners.block_of(rank);
    add_forward(add_lane(rank, kPushLane), owners, block);
    if (owners.count() > 1) add_gather(add_lane(rank, kGatherLane), owners, block);
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
