// Hierarchical all-to-all: a block for another machine goes to the rank of the own machine that has
// the receiver's place, and from there over its rail.
//
//   machines {0, 1} and {2, 3}; "b2 of 1": the block from rank 1 to rank 2
//            push                 rail                          receive
//   rank 0   b1 -> 1, b3 -> 1     b2 of 0 -> 2, b2 of 1 -> 2    own, 1; 0's and 1's... by 2
//   rank 1   b0 -> 0, b2 -> 0     b3 of 0 -> 3, b3 of 1 -> 3
//   and so on
//
// Claim: two network latencies, one of them between machines; each block goes over the wire once;
// a rank is connected with its neighbours and with one rank of each other machine (where machines
// are of one size), not with all; FIFO depth >= 1. Pushes, rails and receivers go through the
// other machines by distance in the same order, so that the first to wait is never waited for. On
// one machine it is the direct one. Source: the message combining of J. Bruck et al., "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", 1997, at two
// levels.
#include "algorithms/all_to_all.h"
#include "algorithms/machines.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "hierarchical";

constexpr int kOwn = 0;     // for the rank that gets it
constexpr int kOthers = 1;  // to be sent on over the rail

enum Phase : size_t { kPush, kRail, kNear, kFar };

void add_rank(Builder& builder, const Machines& machines, int rank) {
  const int machine = machines.of(rank);
  const std::vector<int> neighbours = machines.neighbours(rank);
  PhaseWorkers workers(builder, rank);
  for (const int other : machines.others(machine, 1)) {
    for (const int receiver : machines.ranks(other)) {
      const int forwarder = machines.rank_at(machine, machines.local(receiver));
      if (forwarder != rank) {
        workers[kPush].add(
            {.source = input(receiver), .send_to = workers[kPush].to(forwarder, kOthers)});
        continue;
      }
      WorkerBuilder& worker = workers[kRail];
      for (const int sender : machines.ranks(machine)) {
        const bool is_own = sender == rank;
        worker.add({.receive_from = is_own ? kNone : worker.from(sender, kOthers),
                    .source = is_own ? std::optional(input(receiver)) : std::nullopt,
                    .send_to = worker.to(receiver, kOwn),
                    .chunk_of = is_own ? -1 : receiver});
      }
    }
  }
  for (const int neighbour : neighbours)
    workers[kPush].add({.source = input(neighbour), .send_to = workers[kPush].to(neighbour, kOwn)});
  workers[kNear].add({.source = input(rank), .target = output(rank)});
  for (const int neighbour : neighbours)
    workers[kNear].add(
        {.receive_from = workers[kNear].from(neighbour, kOwn), .target = output(neighbour)});
  for (const int other : machines.others(machine, -1)) {
    const int forwarder = machines.rank_at(other, machines.local(rank));
    for (const int sender : machines.ranks(other))
      workers[kFar].add(
          {.receive_from = workers[kFar].from(forwarder, kOwn), .target = output(sender)});
  }
}

}  // namespace

Result<Schedule> all_to_all_hierarchical(int nranks, const Options& options) {
  TRY(check_options(kName, nranks, kMaxDirectRanks, options));
  const Machines machines(nranks, options);
  if (machines.count() == 1) return renamed(all_to_all_direct(nranks, options), kName);
  Builder builder({.collective = Collective::AllToAll,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks});
  for (const int rank : ranks_to_build(nranks, options)) add_rank(builder, machines, rank);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
