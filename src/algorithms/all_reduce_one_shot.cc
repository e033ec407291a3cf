// One-shot all-reduce: everybody sends its whole input to everybody, and everybody reduces all
// inputs.
//
//   rank 0   input -> 1, 2, 3      output = 0 + 1 + 2 + 3
//   rank 1   input -> 2, 3, 0      output = 0 + 1 + 2 + 3
//   rank 2   input -> 3, 0, 1      output = 0 + 1 + 2 + 3
//   rank 3   input -> 0, 1, 2      output = 0 + 1 + 2 + 3
//
// Claim: 2 instructions per rank and one network latency, the least possible; each rank sends (n -
// 1) times the data; FIFO depth >= 1; one block. Every rank reduces in ascending rank order in one
// instruction, so results are bitwise equal on all ranks and no partial sum is ever rounded.
//
// Sending and reducing share a worker: in place, the reduction overwrites the input that the send
// reads, and only the order within a worker keeps them apart. Ranks start with different peers
// (rank + 1, rank + 2, ...) so that no receiver is addressed by all at once. Source: R. Thakur, R.
// Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005, on
// reducing gathered inputs for short messages.
#include "algorithms/all_reduce.h"
#include "algorithms/instructions.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {
constexpr const char* kName = "one_shot";
}

Result<Schedule> all_reduce_one_shot(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::AllReduce, kName);
  Builder builder(
      {.collective = Collective::AllReduce, .algorithm = kName, .nranks = nranks, .nblocks = 1});
  for (const int rank : ranks_to_build(nranks, options)) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(0), .send_to = worker.to(peers_by_distance(rank, nranks, 1))});
    Instruction reduction = reduction_of_all(worker, rank, nranks, /*tag=*/0, /*block=*/0);
    reduction.target = output(0);
    worker.add(std::move(reduction));
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
