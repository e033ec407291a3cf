// Ring reduce-scatter: each block goes once round the ring to its owner, and gains one contribution
// per hop.
//
//   rank order 0 -> 1 -> 2 -> 0; sends of each rank, step by step | its last store (2,0: the sum of
//   the inputs of ranks 2 and 0)
//
//   rank 0   b2: 0     b1: 2,0   | b0: 1,2,0
//   rank 1   b0: 1     b2: 0,1   | b1: 2,0,1
//   rank 2   b1: 2     b0: 1,2   | b2: 0,1,2
//
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible; FIFO depth >= 2
// (at depth 1 every rank holds its only receive slot while it waits for the next rank's), 1 where
// there are two ranks. Partial sums travel: a block is reduced in ring order from the rank after
// its owner, rounded once per hop. In place is safe: a rank writes last, where it has just read.
// Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.
#include "algorithms/reduce_scatter.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "ring";

void add_worker(Builder& builder, const Seat& seat, int n) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const Connections next = worker.to(seat.rank(1)), prev = worker.from(seat.rank(-1));
  worker.add({.source = input(seat.rank(-1)), .send_to = next});
  for (int hop = 1; hop < n; ++hop) {
    const bool is_last = hop == n - 1;
    worker.add({.receive_from = prev,
                .source = input(seat.rank(-hop - 1)),
                .source_position = 1,  // after the ranks before it on the ring
                .reduce = true,
                .target = is_last ? std::optional(output(0)) : std::nullopt,
                .send_to = is_last ? kNone : next,
                .finish = is_last});
  }
}

}  // namespace

Result<Schedule> reduce_scatter_ring(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::ReduceScatter, kName);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .partial_sums = true});
  for (const Seat& seat : seats_to_build(rings, options)) add_worker(builder, seat, nranks);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
