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
// "ring_halves" is two such chains side by side, each with a block (half of the data), a worker and
// connections of its own: while one worker publishes a chunk, the other moves one.
//
// Source: the pipelined chain of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#include "algorithms/broadcast.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

void add_worker(Builder& builder, const Seat& seat, int root, int half) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const bool is_root = seat.rank() == root, is_last = seat.rank(1) == root;
  worker.add({.receive_from = is_root ? kNone : worker.from(seat.rank(-1), half),
              .source = is_root ? std::optional(input(half)) : std::nullopt,
              .target = output(half),
              .send_to = is_last ? kNone : worker.to(seat.rank(1), half)});
}

Result<Schedule> build(const char* name, int halves, int nranks, const Options& options) {
  TRY(check_options(name, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::Broadcast, name);
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = name,
                   .nranks = nranks,
                   .nblocks = halves,
                   .root = options.root});
  for (const Seat& seat : seats_to_build(rings, options))
    for (int half = 0; half < halves; ++half) add_worker(builder, seat, options.root, half);
  return std::move(builder).take();
}

}  // namespace

Result<Schedule> broadcast_ring(int nranks, const Options& options) {
  return build("ring", /*halves=*/1, nranks, options);
}

Result<Schedule> broadcast_ring_halves(int nranks, const Options& options) {
  return build("ring_halves", kHalves, nranks, options);
}

}  // namespace niccolite::algorithms
