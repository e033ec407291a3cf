// Direct reduce: everybody sends its whole input to the root, which reduces all of them.
//
//   root 1
//   rank 0   input -> 1
//   rank 1   output = 0 + 1 + 2 + 3
//   rank 2   input -> 1
//   rank 3   input -> 1
//
// Claim: 1 instruction per rank and one network latency, the least possible; each rank but the root
// sends the data once, and the root takes n - 1 times the data; FIFO depth >= 1; one block. Reduced
// in ascending rank order in one instruction: no partial sum is ever rounded, and the result does
// not depend on the root. Source: the one-shot all-reduce, for one rank alone.
#include "algorithms/instructions.h"
#include "algorithms/reduce.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {
constexpr const char* kName = "direct";
}

Result<Schedule> reduce_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Reduce, kName);
  const int root = options.root;
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = 1,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    WorkerBuilder worker = builder.add_worker(rank);
    if (rank != root) {
      worker.add({.source = input(0), .send_to = worker.to(root)});
      continue;
    }
    Instruction reduction = reduction_of_all(worker, rank, nranks, /*tag=*/0, /*block=*/0);
    reduction.target = output(0);
    worker.add(std::move(reduction));
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
