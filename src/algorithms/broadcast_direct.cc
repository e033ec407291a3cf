// Direct broadcast: the root sends to everybody.
//
//   root 1
//   rank 1   input  -> output, 2, 3, 0
//   rank 0   rank 1 -> output
//   rank 2   rank 1 -> output
//   rank 3   rank 1 -> output
//
// Claim: 1 instruction per rank and one network latency, the least possible; the root sends n - 1
// times the data, the others nothing; FIFO depth >= 1; one block.
#include "algorithms/broadcast.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {
constexpr const char* kName = "direct";
}

Result<Schedule> broadcast_direct(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  if (nranks == 1) return alone(Collective::Broadcast, kName);
  const int root = options.root;
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = 1,
                   .root = root});
  for (const int rank : ranks_to_build(nranks, options)) {
    WorkerBuilder worker = builder.add_worker(rank);
    if (rank == root)
      worker.add({.source = input(0),
                  .target = output(0),
                  .send_to = worker.to(peers_by_distance(rank, nranks, 1))});
    else
      worker.add({.receive_from = worker.from(root), .target = output(0)});
  }
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
