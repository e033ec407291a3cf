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
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible, to about log2 n
// peers; floor(log2 n) latencies while Options::window suffices; FIFO depth >= Options::window; any
// n. Partial sums travel: each contribution is rounded at most floor(log2 n) times. In place is
// safe: a rank writes last, where it has just read.
#include <algorithm>

#include "algorithms/pat.h"
#include "algorithms/reduce_scatter.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_lane(LaneBuilder lane, int rank, int n, const std::vector<int>& order) {
  for (const int position : order) {
    std::vector<int> peers;
    for (const int dimension : pat_forwards(position, n))
      peers.push_back(pat_rank_behind(rank, dimension, n));
    Instruction instruction{.receive_from = lane.from(peers),
                            .source = input((rank + position) % n),
                            .reduce = !peers.empty()};
    if (position == 0) {
      instruction.target = output(0);
      instruction.finish = true;
    } else {
      instruction.send_to = lane.to(pat_rank_ahead(rank, pat_dimension(position), n));
    }
    lane.add(std::move(instruction));
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
  std::vector<int> order = pat_order(nranks, options.window);
  std::reverse(order.begin(), order.end());
  for (const int rank : ranks_to_build(nranks, options))
    add_lane(builder.add_lane(rank), rank, nranks, order);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
