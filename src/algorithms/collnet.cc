// CollNet: the network reduces. Inside machines data go straight or along a chain, between them
// through the network's reducer (schedule.h, Through). Each rail has a group there, whose members
// are one rank of each machine.
//
//   machines {0, 1} and {2, 3}; block b(r) of rail r, whose members are ranks r and 2 + r
//
//   collnetdirect  push          sums           (network)       results       gather
//   rank 0         b(1) -> 1     b(0): 0+1 ->   \                             b(1) <- 1
//   rank 2         b(1) -> 3     b(0): 2+3 ->    = b(0), all ->  out, 1 / 3   b(1) <- 3
//
//   collnetchain   b(0): 1 -> 0 -> (network) -> 0 -> 1       b(1): 0 -> 1 -> (network) -> 1 -> 0
//
// Claim: of S bytes each machine sends S over its wires and receives S, in equal parts over its
// rails, whatever the number of machines: half of what a ring among many does. One latency of the
// network. FIFO depth >= 1. Rails are as many as the machine with the fewest ranks has ranks;
// further ranks of a machine are members of none. Partial sums travel: each machine's, and what the
// network makes of them, in an order that is the network's. In place is safe: a block is
// overwritten by a result that contains its old content.
//
// All-gather: each rank hands its block to its rail, and passes what comes to its neighbours.
// Reduce-scatter: the ranks of a machine send each other the blocks of their rails; each sums them,
// one block for each machine, and the network scatters the sums. Both are for machines with equally
// many ranks; others do as `hierarchical` does. On one machine they do as `direct` does.
#include <algorithm>

#include "algorithms/all_gather.h"
#include "algorithms/all_reduce.h"
#include "algorithms/instructions.h"
#include "algorithms/machines.h"
#include "algorithms/reduce_scatter.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kDirectName = "collnetdirect";
constexpr const char* kChainName = "collnetchain";

// Connections inside a machine.
constexpr int kUp = 0;
constexpr int kDown = 1;

enum Phase : size_t { kPush, kSum, kResult, kGather };

/// The members of a rail, in the order that the network has.
class Rail {
 public:
  Rail(const Machines& machines, int rail) : rail_(rail), ranks_(machines.ranks_of_rail(rail)) {}
  const std::vector<int>& ranks() const { return ranks_; }
  Connections to(WorkerBuilder& worker, int rank, Through through) const {
    return worker.to(next_to(rank, 1), reducer_tag(through, rail_));
  }
  Connections from(WorkerBuilder& worker, int rank, Through through) const {
    return worker.from(next_to(rank, ranks_.size() - 1), reducer_tag(through, rail_));
  }

 private:
  int next_to(int rank, size_t step) const {
    const auto place = static_cast<size_t>(std::ranges::find(ranks_, rank) - ranks_.begin());
    return ranks_[(place + step) % ranks_.size()];
  }
  const int rail_;
  const std::vector<int> ranks_;
};

std::vector<Contribution> all_of(const std::vector<int>& ranks, int tag) {
  std::vector<Contribution> contributions;
  for (const int rank : ranks) contributions.push_back({rank, tag});
  return contributions;
}

/// The rail's member among the ranks of `rank`'s machine.
int owner(const Machines& machines, int rank, int rail) {
  return machines.rank_at(machines.of(rank), rail);
}

void add_direct(Builder& builder, const Machines& machines, int rank) {
  const std::vector<int> neighbours = machines.neighbours(rank);
  PhaseWorkers workers(builder, rank);
  for (int rail = 0; rail < machines.rails(); ++rail) {
    if (owner(machines, rank, rail) == rank) continue;
    WorkerBuilder& push = workers[kPush];
    push.add({.source = input(rail), .send_to = push.to(owner(machines, rank, rail), kUp)});
  }
  if (const int block = machines.local(rank); block < machines.rails()) {
    const Rail rail(machines, block);
    WorkerBuilder& sums = workers[kSum];
    Instruction sum = reduction_of(sums, rank, all_of(neighbours, kUp), block);
    sum.send_to = rail.to(sums, rank, Through::Reduction);
    sums.add(std::move(sum));
    WorkerBuilder& results = workers[kResult];
    results.add({.receive_from = rail.from(results, rank, Through::Reduction),
                 .target = output(block),
                 .send_to = results.to(neighbours, kDown),
                 .finish = true});
  }
  for (int rail = 0; rail < machines.rails(); ++rail) {
    if (owner(machines, rank, rail) == rank) continue;
    WorkerBuilder& gather = workers[kGather];
    gather.add(
        {.receive_from = gather.from(owner(machines, rank, rail), kDown), .target = output(rail)});
  }
}

/// Two workers: one for all blocks on their way to the network, one for those on the way back. The
/// chain of a block ends at its rail's member.
void add_chain(Builder& builder, const Machines& machines, int rank) {
  const std::vector<int>& ranks = machines.ranks(machines.of(rank));
  const int n = static_cast<int>(ranks.size());
  PhaseWorkers workers(builder, rank);
  for (int block = 0; block < machines.rails(); ++block) {
    const Rail rail(machines, block);
    // From the member on, and round the machine.
    const int place = (machines.local(rank) - block + n) % n;
    const int nearer = machines.rank_at(machines.of(rank), machines.local(rank) + n - 1);
    const int farther = machines.rank_at(machines.of(rank), machines.local(rank) + 1);
    std::vector<int> before;
    if (place + 1 < n) before.push_back(farther);
    WorkerBuilder& up = workers[kSum];
    Instruction sum = reduction_of(up, rank, all_of(before, kUp), block);
    sum.send_to = place == 0 ? rail.to(up, rank, Through::Reduction) : up.to(nearer, kUp);
    up.add(std::move(sum));
    WorkerBuilder& down = workers[kResult];
    down.add({.receive_from =
                  place == 0 ? rail.from(down, rank, Through::Reduction) : down.from(nearer, kDown),
              .target = output(block),
              .send_to = place + 1 < n ? down.to(farther, kDown) : kNone,
              .finish = place == 0});
  }
}

void add_all_gather(Builder& builder, const Machines& machines, int rank) {
  const std::vector<int> neighbours = machines.neighbours(rank);
  PhaseWorkers workers(builder, rank);
  const Rail own(machines, machines.local(rank));
  WorkerBuilder& push = workers[kPush];
  push.add({.source = input(0), .send_to = own.to(push, rank, Through::Gathering)});
  for (const int member : own.ranks()) {
    WorkerBuilder& results = workers[kResult];
    results.add({.receive_from = own.from(results, rank, Through::Gathering),
                 .target = output(member),
                 .send_to = results.to(neighbours, kDown)});
  }
  for (int place = 0; place < machines.count(); ++place) {
    for (const int neighbour : neighbours) {
      WorkerBuilder& gather = workers[kGather];
      gather.add(
          {.receive_from = gather.from(neighbour, kDown),
           .target = output(
               Rail(machines, machines.local(neighbour)).ranks()[static_cast<size_t>(place)])});
    }
  }
}

void add_reduce_scatter(Builder& builder, const Machines& machines, int rank) {
  const std::vector<int> neighbours = machines.neighbours(rank);
  PhaseWorkers workers(builder, rank);
  for (int place = 0; place < machines.count(); ++place) {
    for (const int neighbour : neighbours) {
      const Rail rail(machines, machines.local(neighbour));
      WorkerBuilder& push = workers[kPush];
      push.add({.source = input(rail.ranks()[static_cast<size_t>(place)]),
                .send_to = push.to(neighbour, kUp)});
    }
  }
  const Rail own(machines, machines.local(rank));
  for (const int member : own.ranks()) {
    WorkerBuilder& sums = workers[kSum];
    Instruction sum = reduction_of(sums, rank, all_of(neighbours, kUp), member);
    sum.send_to = own.to(sums, rank, Through::Scattering);
    sums.add(std::move(sum));
  }
  WorkerBuilder& results = workers[kResult];
  results.add({.receive_from = own.from(results, rank, Through::Scattering),
               .target = output(0),
               .finish = true});
}

using Add = void (*)(Builder&, const Machines&, int rank);

Schedule build(Builder::Head head, const Machines& machines, const Options& options, Add add) {
  const int nranks = head.nranks;
  Builder builder(std::move(head));
  for (const int rank : ranks_to_build(nranks, options)) add(builder, machines, rank);
  return std::move(builder).take();
}

bool are_even(const Machines& machines) { return machines.most_ranks() == machines.rails(); }

Result<Schedule> all_reduce(const char* name, int nranks, const Options& options, Add add) {
  TRY(check_options(name, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_reduce_two_shot(nranks, options), name);
  return build({.collective = Collective::AllReduce,
                .algorithm = name,
                .nranks = nranks,
                .nblocks = machines.rails(),
                .partial_sums = true},
               machines, options, add);
}

}  // namespace

Result<Schedule> all_reduce_collnet_direct(int nranks, const Options& options) {
  return all_reduce(kDirectName, nranks, options, add_direct);
}

Result<Schedule> all_reduce_collnet_chain(int nranks, const Options& options) {
  return all_reduce(kChainName, nranks, options, add_chain);
}

Result<Schedule> all_gather_collnet_direct(int nranks, const Options& options) {
  TRY(check_options(kDirectName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_gather_direct(nranks, options), kDirectName);
  if (!are_even(machines)) return renamed(all_gather_hierarchical(nranks, options), kDirectName);
  return build({.collective = Collective::AllGather,
                .algorithm = kDirectName,
                .nranks = nranks,
                .nblocks = nranks},
               machines, options, add_all_gather);
}

Result<Schedule> reduce_scatter_collnet_direct(int nranks, const Options& options) {
  TRY(check_options(kDirectName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(reduce_scatter_direct(nranks, options), kDirectName);
  if (!are_even(machines))
    return renamed(reduce_scatter_hierarchical(nranks, options), kDirectName);
  return build({.collective = Collective::ReduceScatter,
                .algorithm = kDirectName,
                .nranks = nranks,
                .nblocks = nranks,
                .partial_sums = true},
               machines, options, add_reduce_scatter);
}

}  // namespace niccolite::algorithms
