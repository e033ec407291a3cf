// Hierarchical all-reduce: inside machines directly, between machines each local rank on its own
// rail.
//
//   machines {0, 1} and {2, 3}; block b(r, m): of rail r, owned by that rank of machine m
//
//            push               sums for others      results                    pass on
//   rank 0   b(1,*) -> 1        b(0,1): 0+1 -> 2     b(0,0): 0+1+(2+3)          b(0,1) <- 2
//                                                       -> output, 2, 1            -> output, 1
//   rank 1   b(0,*) -> 0        b(1,1): 0+1 -> 3     b(1,0): 0+1+(2+3) ...      b(1,1) <- 3 ...
//   rank 2   b(1,*) -> 3        b(0,0): 2+3 -> 0     b(0,1): (0+1)+2+3 ...      b(0,0) <- 0 ...
//   and a gather worker that stores what the ranks of the same machine pass on
//
// Claim: four network latencies, two of them between machines; of S bytes each machine sends 2 (N -
// 1)/N S over its wires, the least possible, in equal parts over its rails; FIFO depth >= 1; N
// blocks for each rail. Rails are as many as the machine with the fewest ranks has ranks; further
// ranks of a machine own no block. Partial sums travel: each machine's, reduced in ascending rank
// order, and reduced again in ascending order of the ranks they come from. In place is safe as in
// the two-shot: a block is overwritten by a result that contains its contribution.
//
// On one machine it is the two-shot. Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
// collective communication operations in MPICH", 2005, at two levels.
#include "algorithms/all_reduce.h"
#include "algorithms/instructions.h"
#include "algorithms/machines.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

// Connections inside a machine. Between machines sums and results have tags of their own, so that
// all connections of one of the others stay inside: a team (lowering/routes.h) may then carry them.
constexpr int kOwn = 0;      // inputs of blocks that the receiver's machine owns
constexpr int kOthers = 1;   // inputs of blocks that other machines own
constexpr int kResults = 3;  // results of the own machine's blocks
constexpr int kPassed = 4;   // results of other machines' blocks
constexpr int kSumsOnRail = 5;
constexpr int kResultsOnRail = 6;

enum Phase : size_t { kPush, kSum, kResult, kPass, kGather };

struct Plan {
  const Machines& machines;
  int rank;
  int machine;
  std::vector<int> neighbours;

  int block(int rail, int of_machine) const { return rail * machines.count() + of_machine; }
};

/// Adds the work of the owner of a rail on its blocks.
void add_owner(PhaseWorkers& workers, const Plan& plan, int rail) {
  const Machines& machines = plan.machines;
  std::vector<Contribution> own, others;
  for (const int neighbour : plan.neighbours) {
    own.push_back({neighbour, kOwn});
    others.push_back({neighbour, kOthers});
  }
  for (const int other : machines.others(plan.machine, 1)) {
    WorkerBuilder& worker = workers[kSum];
    Instruction sum = reduction_of(worker, plan.rank, others, plan.block(rail, other));
    sum.send_to = worker.to(machines.rank_at(other, rail), kSumsOnRail);
    worker.add(std::move(sum));
    own.push_back({machines.rank_at(other, rail), kSumsOnRail});
  }
  std::vector<int> peers;
  for (const int other : machines.others(plan.machine, 1))
    peers.push_back(machines.rank_at(other, rail));
  WorkerBuilder& result = workers[kResult];
  Instruction reduction = reduction_of(result, plan.rank, own, plan.block(rail, plan.machine));
  reduction.target = output(plan.block(rail, plan.machine));
  reduction.send_to = result.to(peers, kResultsOnRail);
  for (const int to : result.to(plan.neighbours, kResults)) reduction.send_to.push_back(to);
  reduction.finish = true;
  result.add(std::move(reduction));
  for (const int other : machines.others(plan.machine, -1)) {
    WorkerBuilder& worker = workers[kPass];
    worker.add({.receive_from = worker.from(machines.rank_at(other, rail), kResultsOnRail),
                .target = output(plan.block(rail, other)),
                .send_to = worker.to(plan.neighbours, kPassed)});
  }
}

void add_rank(Builder& builder, const Machines& machines, int rank) {
  const Plan plan{machines, rank, machines.of(rank), machines.neighbours(rank)};
  PhaseWorkers workers(builder, rank);
  const int rails = machines.rails();
  // The block that goes furthest first; owners sum in the same order.
  for (const int other : machines.others(plan.machine, 1)) {
    for (int rail = 0; rail < rails; ++rail) {
      const int owner = machines.rank_at(plan.machine, rail);
      if (owner == rank) continue;
      WorkerBuilder& worker = workers[kPush];
      worker.add({.source = input(plan.block(rail, other)), .send_to = worker.to(owner, kOthers)});
    }
  }
  for (int rail = 0; rail < rails; ++rail) {
    const int owner = machines.rank_at(plan.machine, rail);
    if (owner == rank) continue;
    WorkerBuilder& worker = workers[kPush];
    worker.add(
        {.source = input(plan.block(rail, plan.machine)), .send_to = worker.to(owner, kOwn)});
  }
  if (machines.local(rank) < rails) add_owner(workers, plan, machines.local(rank));
  for (int rail = 0; rail < rails; ++rail) {
    const int owner = machines.rank_at(plan.machine, rail);
    if (owner == rank) continue;
    WorkerBuilder& worker = workers[kGather];
    worker.add({.receive_from = worker.from(owner, kResults),
                .target = output(plan.block(rail, plan.machine))});
  }
  for (const int other : machines.others(plan.machine, -1)) {
    for (int rail = 0; rail < rails; ++rail) {
      const int owner = machines.rank_at(plan.machine, rail);
      if (owner == rank) continue;
      WorkerBuilder& worker = workers[kGather];
      worker.add(
          {.receive_from = worker.from(owner, kPassed), .target = output(plan.block(rail, other))});
    }
  }
}

}  // namespace

Result<Schedule> all_reduce_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_reduce_two_shot(nranks, options), kName);
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = machines.rails() * machines.count(),
                   .partial_sums = true});
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
