// Recursive doubling all-reduce: in each step every rank exchanges all that it has reduced with the
// rank whose number differs in one bit more, and reduces both.
//
//            step 0        step 1               step 2
//   rank 0   0+1           01+23                0123+4567
//   rank 1   0+1           01+23                ...
//   rank 2   2+3           01+23
//   rank 3   2+3           01+23
//
// Where the ranks are no power of two, those beyond the largest one below give their input to the
// rank so many places before, and get the result from it.
//
// Claim: 2 log2 n instructions and log2 n network latencies, with ranks beyond a power of two up to
// 2 more of each; each rank sends log2 n times the data; FIFO depth >= 1; one block. Both ranks of
// an exchange reduce the lower ranks' sum first, so that all come to the same, bit by bit; partial
// sums travel. One worker, in whose order the sums replace each other in the output. Source: R.
// Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
// MPICH", 2005.
#include <bit>

#include "algorithms/all_reduce.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "recursive_doubling";

void add_worker(Builder& builder, int rank, int nranks) {
  WorkerBuilder worker = builder.add_worker(rank);
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(nranks)));
  if (rank >= power) {
    worker.add({.source = input(0), .send_to = worker.to(rank - power)});
    worker.add({.receive_from = worker.from(rank - power), .target = output(0)});
    return;
  }
  BlockReference sum = input(0);
  const int beyond = rank + power;
  if (beyond < nranks) {
    worker.add({.receive_from = worker.from(beyond),
                .source = sum,
                .reduce = true,
                .target = output(0),
                .finish = power == 1});
    sum = output(0);
  }
  for (int bit = 1; bit < power; bit *= 2) {
    const int peer = rank ^ bit;
    worker.add({.source = sum, .send_to = worker.to(peer)});
    worker.add({.receive_from = worker.from(peer),
                .source = sum,
                .source_position = peer < rank ? 1 : 0,
                .reduce = true,
                .target = output(0),
                .finish = 2 * bit == power});
    sum = output(0);
  }
  if (beyond < nranks) worker.add({.source = sum, .send_to = worker.to(beyond)});
}

}  // namespace

Result<Schedule> all_reduce_recursive_doubling(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::AllReduce, kName);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = 1,
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options)) add_worker(builder, rank, nranks);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
