// PAT all-to-all: every block goes from its owner to its receiver along the owner's binomial tree
// (pat.h), far steps first, all of them at once. The paths of Bruck et al., "Efficient algorithms
// for all-to-all communications in multiport message-passing systems", 1997, without its scratch
// memory: blocks on their way are in slots of connections.
//
//   n = 4; of rank r. The block for the rank s back has s steps' worth of bits:
//
//   to 2   input, for r - 2         -> rank r - 2
//   to 3   input, for r - 3         -> rank r - 2
//   to 1   input, for r - 1         -> rank r - 1
//   to 2   from rank r + 2          -> output of r + 2
//   to 3   from rank r + 2          -> rank r - 1
//   to 1   from rank r + 1          -> output of r + 1
//   to 3   from rank r + 1          -> output of r + 3
//   own    input                    -> output
//
// Claim: each rank has connections to and from ceil(log2 n) others, the same as in the PAT
// all-gather, and sends n/2 log2 n blocks (n a power of two), each as often as its distance has
// bits set; as many instructions, n - 1 that receive and one for the own block. FIFO depth >=
// Options::window; any n. For many ranks: the direct one has a connection for each pair.
#include "algorithms/all_to_all.h"
#include "algorithms/pat.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "pat";

void add_worker(WorkerBuilder worker, int rank, int n, const std::vector<PatHop>& order) {
  for (const PatHop& hop : order) {
    const int owner = (rank + hop.at) % n;
    const int receiver = (owner - hop.to + n) % n;
    const bool is_owner = hop.at == 0, is_receiver = hop.at == hop.to;
    worker.add(passed_on(
        worker, {.from = is_owner ? -1 : pat_rank_ahead(rank, pat_dimension(hop.at), n),
                 .to = is_receiver ? -1 : pat_rank_behind(rank, pat_next_dimension(hop), n),
                 .source = input(receiver),
                 .target = output(owner),
                 .chunk_of = receiver}));
  }
  worker.add({.source = input(rank), .target = output(rank)});
}

}  // namespace

Result<Schedule> all_to_all_pat(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxForwardingRanks, options));
  if (nranks == 1) return alone(Collective::AllToAll, kName);
  Builder builder({.collective = Collective::AllToAll,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  const std::vector<PatHop> order = pat_hops(nranks, options.window);
  for (const int rank : ranks_to_build(nranks, options))
    add_worker(builder.add_worker(rank), rank, nranks, order);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
