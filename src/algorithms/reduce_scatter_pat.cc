// PAT reduce-scatter: the contributions to every block are summed along its own binomial tree, near
// ranks first, all trees at once. The PAT all-gather with every arrow and the order turned round.
//
//   n = 4; rank r goes through positions 3, 1, 2, 0 (pat.h): block r + position, modulo n
//
//   position 3   input                                   -> rank r + 1
//   position 1   input                                   -> rank r + 1
//   position 2   input + from rank r - 1                 -> rank r + 2
//   position 0   input + from rank r - 2 + from rank r - 1 -> output, finished
//
// On several machines with several ranks, trees are over machines: each machine's contribution is
// reduced by the rank that has the block's tree, to which its neighbours push theirs.
//
//   machines {0, 1}, {2, 3}, {4, 5}: rank 0 has the trees of places 0, rank 1 the trees of places 1
//
//   rank 0   b2: input + rank 1                    -> rank 2    push to rank 1
//            b4: input + rank 1                    -> rank 4    b3, b5, b1
//            b0: input + rank 1 + rank 2 + rank 4  -> output, finished
//
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible, to about log2 n
// peers; floor(log2 n) latencies while Options::window suffices; FIFO depth >= Options::window; any
// n. Of m machines: floor(log2 m) latencies between machines and one inside. Partial sums travel:
// each contribution is rounded at most floor(log2 m) times. In place is safe: a rank writes last,
// where it has just read.
#include <algorithm>

#include "algorithms/pat.h"
#include "algorithms/reduce_scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

enum Phase : size_t { kOp, kPush };

void add_rank(Builder& builder, const Machines& machines, int rank, const std::vector<int>& order) {
  PhaseWorkers workers(builder, rank);
  for (const PatTurn& turn : pat_turns(machines, machines.of(rank), order)) {
    if (turn.handler != rank) {
      workers[kPush].add({.source = input(turn.owner), .send_to = workers[kPush].to(turn.handler)});
      continue;
    }
    WorkerBuilder& worker = workers[kOp];
    worker.add(reduced_up(worker, rank, pat_edges(machines, turn), turn.owner, output(0)));
  }
}

}  // namespace

Result<Schedule> reduce_scatter_pat(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  if (nranks == 1) return alone(Collective::ReduceScatter, kName);
  Builder builder({.collective = Collective::ReduceScatter,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .partial_sums = true});
  const Machines machines = pat_machines(nranks, options);
  std::vector<int> order = pat_order(machines.count(), options.window);
  std::reverse(order.begin(), order.end());
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank, order);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
