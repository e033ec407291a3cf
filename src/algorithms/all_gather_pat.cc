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
// Claim: n instructions per rank; each rank sends n - 1 blocks, the least possible, to about log2 n
// peers; floor(log2 n) latencies while Options::window suffices; FIFO depth >= Options::window; any
// n. In place is safe: a rank writes others' blocks only, and its own where it is.
#include "algorithms/all_gather.h"
#include "algorithms/pat.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_lane(LaneBuilder lane, int rank, int n, const std::vector<int>& order) {
  for (const int position : order) {
    Instruction instruction{.target = output((rank + position) % n)};
    if (position == 0)
      instruction.source = input(0);
    else
      instruction.receive_from = lane.from(pat_rank_ahead(rank, pat_dimension(position), n));
    std::vector<int> peers;
    for (const int dimension : pat_forwards(position, n))
      peers.push_back(pat_rank_behind(rank, dimension, n));
    instruction.send_to = lane.to(peers);
    lane.add(std::move(instruction));
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
  const std::vector<int> order = pat_order(nranks, options.window);
  for (const int rank : ranks_to_build(nranks, options))
    add_lane(builder.add_lane(rank), rank, nranks, order);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
