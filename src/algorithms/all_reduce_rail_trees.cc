// All-reduce along a tree of machines for each rail: inside machines directly, between machines up
// and down a tree.
//
//   machines {0, 1} and {2, 3}; block r: of rail r, owned on each machine by its rank of that rail
//
//            push         sum                       result                     gather
//   rank 0   b1 -> 1                                b0: 0+1+(2+3)              b1 <- 1
//                                                       -> output, 2, 1
//   rank 2   b1 -> 3      b0: 2+3 -> 0              b0 <- 0 -> output, 3       b1 <- 3
//   rank 1   b0 -> 0      b1: 0+1 -> 3              b1 <- 3 -> output, 0       b0 <- 0
//   rank 3   b0 -> 2                                b1: (0+1)+2+3              b0 <- 2
//                                                       -> output, 1, 2
//
// Claim: at most two instructions for each rank of a machine, however many machines there are, and
// each connection carries one block; two network latencies inside machines, and twice the depth of
// a binary tree between them; a rank sends at most 3/R of the data over its rail, where machines
// have R rails; FIFO depth >= 1. Rails take turns with the two trees of tree.h: a machine that has
// children in one is a leaf of the other. Rails are as many as the machine with the fewest ranks
// has ranks; further ranks of a machine own no block. Partial sums travel: each subtree's, reduced
// in ascending order of the ranks they come from. In place is safe as in the two-shot: a block is
// overwritten by a result that contains its contribution.
//
// With a worker for each instruction the steps inside machines may go from buffer to buffer, and by
// a team on windows (lowering/routes.h): no connection carries two blocks.
//
// On one machine it is the two-shot. Source: tree.h, on each rail of the hierarchical all-reduce.
#include "algorithms/all_reduce.h"
#include "algorithms/instructions.h"
#include "algorithms/tree.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "rail_trees";

// Between machines sums and results have tags of their own, so that all connections of one of the
// others stay inside: a team may then carry them.
constexpr int kInputs = 0;
constexpr int kResults = 1;
constexpr int kSumsOnRail = 5;
constexpr int kResultsOnRail = 6;

enum Phase : size_t { kPush, kSum, kResult, kGather };

/// Adds the work of the owner of `rail` on its block.
void add_owner(PhaseWorkers& workers, const Machines& machines, int rank, int rail) {
  const BinaryTree tree(machines.count(), rail % kTrees);
  const int machine = machines.of(rank), parent = tree.parent(machine);
  const std::vector<int> neighbours = machines.neighbours(rank);
  std::vector<Contribution> others;
  for (const int neighbour : neighbours) others.push_back({neighbour, kInputs});
  std::vector<int> below;
  for (const int child : tree.children(machine)) below.push_back(machines.rank_at(child, rail));
  for (const int child : below) others.push_back({child, kSumsOnRail});
  if (parent >= 0) {
    WorkerBuilder& worker = workers[kSum];
    Instruction sum = reduction_of(worker, rank, others, rail);
    sum.send_to = worker.to(machines.rank_at(parent, rail), kSumsOnRail);
    worker.add(std::move(sum));
  }
  WorkerBuilder& result = workers[kResult];
  Instruction last;
  if (parent >= 0) {
    last.receive_from = result.from(machines.rank_at(parent, rail), kResultsOnRail);
  } else {
    last = reduction_of(result, rank, others, rail);
    last.finish = true;
  }
  last.target = output(rail);
  last.send_to = result.to(below, kResultsOnRail);
  for (const int to : result.to(neighbours, kResults)) last.send_to.push_back(to);
  result.add(std::move(last));
}

void add_rank(Builder& builder, const Machines& machines, int rank) {
  PhaseWorkers workers(builder, rank);
  const int rails = machines.rails(), machine = machines.of(rank);
  // Each rank begins with another owner.
  for (int i = 1; i <= rails; ++i) {
    const int rail = (machines.local(rank) + i) % rails;
    const int owner = machines.rank_at(machine, rail);
    if (owner == rank) continue;
    workers[kPush].add({.source = input(rail), .send_to = workers[kPush].to(owner, kInputs)});
  }
  if (machines.local(rank) < rails) add_owner(workers, machines, rank, machines.local(rank));
  for (int i = rails; i >= 1; --i) {
    const int rail = (machines.local(rank) + i) % rails;
    const int owner = machines.rank_at(machine, rail);
    if (owner == rank) continue;
    WorkerBuilder& worker = workers[kGather];
    worker.add({.receive_from = worker.from(owner, kResults), .target = output(rail)});
  }
}

}  // namespace

Result<Schedule> all_reduce_rail_trees(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_reduce_two_shot(nranks, options), kName);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = machines.rails(),
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
