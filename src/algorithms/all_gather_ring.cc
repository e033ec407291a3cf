// Ring all-gather: each block goes once round the ring, and stays everywhere it comes by.
//
//   rank order 0 -> 1 -> 2 -> 0; sends of rank r in each step, and its last store
//
//   rank 0   b0   b2   | b1
//   rank 1   b1   b0   | b2
//   rank 2   b2   b1   | b0
//
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible; FIFO depth >= 2
// (at depth 1 every rank holds its only receive slot while it waits for the next rank's), 1 where
// there are two ranks. In place is safe: a rank writes others' blocks only, and its own where it
// is. Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.
#include "algorithms/all_gather.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "ring";

void add_worker(Builder& builder, const Seat& seat, int n) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const Connections next = worker.to(seat.rank(1)), prev = worker.from(seat.rank(-1));
  worker.add({.source = input(0), .target = output(seat.rank()), .send_to = next});
  for (int hop = 1; hop < n; ++hop)
    worker.add({.receive_from = prev,
                .target = output(seat.rank(-hop)),
                .send_to = hop < n - 1 ? next : kNone});
}

}  // namespace

Result<Schedule> all_gather_ring(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::AllGather, kName);
  Builder builder({.collective = Collective::AllGather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const Seat& seat : seats_to_build(rings, options)) add_worker(builder, seat, nranks);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
