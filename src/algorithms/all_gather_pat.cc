// PAT all-gather: every block is passed along its own binomial tree, far ranks first, all trees at
// once.
//
//   n = 4; rank r goes through positions 0, 2, 1, 3 (pat.h): block r + position, modulo n
//
//   position 0   input                -> output, rank r - 2, rank r - 1
//   position 2   from rank r + 2      -> output, rank r - 1
//   position 1   from rank r + 1      -> output
//   position 3   from rank r + 1      -> output
//
// On several machines with several ranks, trees are over machines, one for each block; a rank also
// gives the blocks of its tree to its neighbours:
//
//   machines {0, 1}, {2, 3}, {4, 5}: rank 0 has the trees of places 0, rank 1 the trees of places 1
//
//   rank 0   b0: input  -> output, rank 2, rank 4, rank 1    gather
//            b4: rank 4 -> output, rank 1                    b1, b5, b3 <- rank 1
//            b2: rank 2 -> output, rank 1
//
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible, to about log2 n
// peers; floor(log2 n) latencies while Options::window suffices; FIFO depth >= Options::window; any
// n. Of m machines: floor(log2 m) latencies between machines and one inside; each rank
// sends m - 1 blocks to other machines, the least that all together can send. In place is
// safe: a rank writes others' blocks only, and its own where it is.
#include "algorithms/all_gather.h"
#include "algorithms/pat.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_rank(Builder& builder, const Machines& machines, int rank, int nranks,
              const std::vector<int>& order) {
  WorkerBuilder worker = builder.add_worker(rank);
  GatherWorkers gathers(builder, rank, nranks);
  for (const PatTurn& turn : pat_turns(machines, machines.of(rank), order)) {
    if (turn.handler != rank) {
      gathers.add(turn.handler, /*tag=*/0, turn.owner);
      continue;
    }
    worker.add(passed_down(worker, pat_edges(machines, turn), input(0), output(turn.owner)));
  }
}

}  // namespace

Result<Schedule> all_gather_pat(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::AllGather, kName);
  Builder builder({.collective = Collective::AllGather,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  const Machines machines = pat_machines(nranks, options);
  const std::vector<int> order = pat_order(machines.count(), options.window);
  for (const int rank : ranks_to_build(nranks, options))
    add_rank(builder, machines, rank, nranks, order);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
