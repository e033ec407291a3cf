// Ring broadcast: a chain along the ring from the root; each rank keeps what passes.
//
//   root 2, ring order 0 -> 1 -> 2 -> 3 -> 0
//
//   rank 2   input   -> output, rank 3
//   rank 3   rank 2  -> output, rank 0
//   rank 0   rank 3  -> output, rank 1
//   rank 1   rank 0  -> output
//
// Claim: 1 instruction per rank; each rank but the last sends the data once, the least possible;
// n - 1 latencies for the first chunk, then one chunk after the other; FIFO depth >= 1; one block.
//
// Source: the pipelined chain of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#include "algorithms/broadcast.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "ring";

void add_worker(Builder& builder, const Seat& seat, int root) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const bool is_root = seat.rank() == root, is_last = seat.rank(1) == root;
  worker.add({.receive_from = is_root ? kNone : worker.from(seat.rank(-1)),
              .source = is_root ? std::optional(input(0)) : std::nullopt,
              .target = output(0),
              .send_to = is_last ? kNone : worker.to(seat.rank(1))});
}

}  // namespace

Result<Schedule> broadcast_ring(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::Broadcast, kName);
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = 1,
                   .root = options.root});
  for (const Seat& seat : seats_to_build(rings, options)) add_worker(builder, seat, options.root);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
