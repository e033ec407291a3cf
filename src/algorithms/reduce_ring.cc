// Ring reduce: a chain along the ring that ends at the root; each rank adds its input to the sum
// that passes.
//
//   root 0, ring order 0 -> 1 -> 2 -> 3 -> 0; the sums that travel, as lists of ranks
//
//   rank 1   input           -> rank 2: 1
//   rank 2   rank 1 + input  -> rank 3: 1,2
//   rank 3   rank 2 + input  -> rank 0: 1,2,3
//   rank 0   rank 3 + input  -> output: 1,2,3,0, finished
//
// Claim: 1 instruction per rank; each rank but the root sends the data once, the least possible;
// n - 1 latencies for the first chunk, then one chunk after the other; FIFO depth >= 1; one block.
// Partial sums travel: reduced in ring order from the rank after the root, rounded once per hop. In
// place is safe: only the last instruction writes.
//
// Source: the pipelined chain of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#include "algorithms/reduce.h"
#include "algorithms/ring.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "ring";

void add_worker(Builder& builder, const Seat& seat, int root) {
  WorkerBuilder worker = builder.add_worker(seat.rank(), seat.channel());
  const bool is_root = seat.rank() == root, is_first = seat.rank(-1) == root;
  worker.add({.receive_from = is_first ? kNone : worker.from(seat.rank(-1)),
              .source = input(0),
              .source_position = is_first ? 0 : 1,  // after the ranks before it on the ring
              .reduce = !is_first,
              .target = is_root ? std::optional(output(0)) : std::nullopt,
              .send_to = is_root ? kNone : worker.to(seat.rank(1)),
              .finish = is_root});
}

}  // namespace

Result<Schedule> reduce_ring(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  const std::vector<std::vector<int>> rings = TRY(rings_of(nranks, options));
  if (nranks == 1) return alone(Collective::Reduce, kName);
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = 1,
                   .root = options.root,
                   .partial_sums = true});
  for (const Seat& seat : seats_to_build(rings, options)) add_worker(builder, seat, options.root);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
