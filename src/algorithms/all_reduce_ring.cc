// Ring all-reduce: a reduce-scatter once round the ring, then an all-gather once round it.
//
//   rank order 0 -> 1 -> 2 -> 0, three blocks; what each rank sends, step by step (2,0: the sum of
//   the inputs of ranks 2 and 0)
//
//            reduce-scatter              all-gather
//   rank 0   b2: 0      b1: 2,0         b0: 1,2,0 *   b2: all
//   rank 1   b0: 1      b2: 0,1         b1: 2,0,1 *   b0: all        * finished here, and kept
//   rank 2   b1: 2      b0: 1,2         b2: 0,1,2 *   b1: all
//
// Block b starts at the rank after position b, gains one contribution per hop, is complete at
// position b after n - 1 hops, and goes round once more.
//
// Claim: 2n - 1 instructions per rank; each rank sends 2(n - 1)/n of the data, the least possible;
// FIFO depth >= 2 (at depth 1 every rank holds its only receive slot while it waits for the next
// rank's). Partial sums travel: block b is reduced in ring order from the rank after position b,
// rounded once per hop. In place is safe: a rank overwrites a block only with the finished sum,
// which contains the block's input. Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009.
#include "algorithms/all_reduce.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "ring";

void add_worker(Builder& builder, const Seat& seat, int n) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const Connections next = worker.to(seat.rank(1)), prev = worker.from(seat.rank(-1));

  for (int hop = 0; hop < n - 1; ++hop)  // reduce-scatter: the block gains this rank's contribution
    worker.add({.receive_from = hop > 0 ? prev : kNone,
                .source = input(seat.position(-hop - 1)),
                .source_position = hop > 0 ? 1 : 0,  // after the ranks before it on the ring
                .reduce = hop > 0,
                .send_to = next});
  worker.add({.receive_from = prev,
              .source = input(seat.position()),
              .source_position = 1,
              .reduce = true,
              .target = output(seat.position()),
              .send_to = next,
              .finish = true});
  for (int hop = 1; hop < n; ++hop)  // all-gather: the finished block goes round once more
    worker.add({.receive_from = prev,
                .target = output(seat.position(-hop)),
                .send_to = hop < n - 1 ? next : kNone});
}

}  // namespace

Result<Schedule> all_reduce_ring(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::AllReduce, kName);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .partial_sums = true});
  for (const Seat& seat : seats_to_build(rings, options)) add_worker(builder, seat, nranks);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
