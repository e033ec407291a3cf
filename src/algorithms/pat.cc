#include "algorithms/pat.h"

#include <algorithm>
#include <bit>
#include <deque>

#include "schedule/index.h"

namespace niccolite::algorithms {

using schedule::at;
using schedule::length;

namespace {

/// ceil(log2 nranks).
int dimensions_of(int nranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(nranks - 1)));
}

int highest_bit(int value) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(value)));
}

}  // namespace

int pat_dimension(int position) { return std::countr_zero(static_cast<unsigned>(position)); }

std::vector<int> pat_forwards(int position, int nranks) {
  int dimension = position > 0 ? pat_dimension(position) : dimensions_of(nranks);
  std::vector<int> dimensions;
  while (--dimension >= 0)
    if (position + (1 << dimension) < nranks) dimensions.push_back(dimension);
  return dimensions;
}

std::vector<int> pat_order(int nranks, int window) {
  std::vector<int> order;
  // By dimension: the positions that chunks in flight will have where they arrive.
  std::vector<std::deque<int>> in_flight(static_cast<size_t>(dimensions_of(nranks)));
  const auto has_room = [&](int dimension) { return length(at(in_flight, dimension)) < window; };
  const auto take = [&](int position) {
    order.push_back(position);
    for (const int dimension : pat_forwards(position, nranks))
      at(in_flight, dimension).push_back(position + (1 << dimension));
  };
  take(0);
  while (length(order) < nranks) {
    // One latency later: the chunks in flight have arrived. A chunk is taken where there is room
    // for the chunks by which it is passed on. In the lowest dimension in flight there always is.
    std::vector<int> arrived;
    for (const std::deque<int>& queue : in_flight) arrived.push_back(length(queue));
    for (bool is_stuck = false; !is_stuck;) {
      is_stuck = true;
      for (int dimension = length(in_flight) - 1; dimension >= 0; --dimension) {
        if (at(arrived, dimension) == 0) continue;
        const int position = at(in_flight, dimension).front();
        const std::vector<int> forwards = pat_forwards(position, nranks);
        if (!std::all_of(forwards.begin(), forwards.end(), has_room)) continue;
        at(in_flight, dimension).pop_front();
        --at(arrived, dimension);
        take(position);
        is_stuck = false;
      }
    }
  }
  return order;
}

Machines pat_machines(int nranks, const Options& options) {
  constexpr int kMostRanksOfMachine = 128;  // a reduction has 255 operands at most
  Machines machines(nranks, options);
  if (machines.count() > 1 && machines.most_ranks() <= kMostRanksOfMachine) return machines;
  Options apart;
  for (int rank = 0; rank < nranks; ++rank) apart.machines.push_back(rank);
  return {nranks, apart};
}

std::vector<PatTurn> pat_turns(const Machines& machines, int machine,
                               const std::vector<int>& order) {
  std::vector<PatTurn> turns;
  for (int first = 0; first < machines.most_ranks(); first += machines.rails()) {
    for (const int position : order) {
      const std::vector<int>& owners = machines.ranks((machine + position) % machines.count());
      const int end = std::min(first + machines.rails(), length(owners));
      for (int place = first; place < end; ++place)
        turns.push_back({position, at(owners, place), machines.rank_at(machine, place)});
    }
  }
  return turns;
}

TreeEdges pat_edges(const Machines& machines, const PatTurn& turn) {
  const int machine = machines.of(turn.handler);
  const auto handler_at = [&](int other) {
    return machines.rank_at(other, machines.local(turn.owner));
  };
  TreeEdges edges{.above = -1, .below = {}};
  if (turn.position > 0)
    edges.above =
        handler_at(pat_rank_ahead(machine, pat_dimension(turn.position), machines.count()));
  for (const int dimension : pat_forwards(turn.position, machines.count()))
    edges.below.push_back(handler_at(pat_rank_behind(machine, dimension, machines.count())));
  const std::vector<int> neighbours = machines.neighbours(turn.handler);
  edges.below.insert(edges.below.end(), neighbours.begin(), neighbours.end());
  return edges;
}

int pat_next_dimension(const PatHop& hop) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(hop.to ^ hop.at))) - 1;
}

std::vector<PatHop> pat_hops(int nranks, int window) {
  const int dimensions = dimensions_of(nranks);
  std::vector<PatHop> order;
  std::vector<std::deque<PatHop>> in_flight(static_cast<size_t>(dimensions));  // where they arrive
  std::vector<int> next;  // by dimension: of the blocks that the owner sends over it, ascending
  for (int dimension = 0; dimension < dimensions; ++dimension) next.push_back(1 << dimension);
  int arriving = nranks - 1;  // blocks that are not where they belong
  const auto has_room = [&](const PatHop& hop) {
    return hop.at == hop.to || length(at(in_flight, pat_next_dimension(hop))) < window;
  };
  const auto take = [&](const PatHop& hop) {
    order.push_back(hop);
    if (hop.at == hop.to) {
      --arriving;
      return;
    }
    at(in_flight, pat_next_dimension(hop))
        .push_back({hop.to, hop.at + highest_bit(hop.to ^ hop.at)});
  };
  while (arriving > 0) {
    // One latency later: the hops in flight have arrived. Some in the lowest dimension in flight
    // can always be taken: nothing is in flight in the dimensions over which they are passed on.
    std::vector<int> arrived;
    for (const std::deque<PatHop>& queue : in_flight) arrived.push_back(length(queue));
    for (int dimension = dimensions - 1; dimension >= 0; --dimension) {
      std::deque<PatHop>& queue = at(in_flight, dimension);
      for (; at(arrived, dimension) > 0 && has_room(queue.front()); --at(arrived, dimension)) {
        const PatHop hop = queue.front();
        queue.pop_front();
        take(hop);
      }
    }
    for (int dimension = dimensions - 1; dimension >= 0; --dimension) {
      int& to = at(next, dimension);
      const int end = std::min(nranks, 2 << dimension);
      for (; to < end && has_room({to, 0}); ++to) take({to, 0});
    }
  }
  return order;
}

int BinomialTree::above(int rank) const {
  const int distance = distance_of(rank);
  return distance == 0 ? -1 : rank_at(distance - highest_bit(distance));
}

std::vector<int> BinomialTree::subtree(int rank) const {
  const int distance = distance_of(rank);
  const int step = 1 << std::bit_width(static_cast<unsigned>(distance));
  std::vector<int> ranks;
  for (int below = distance; below < nranks; below += step) ranks.push_back(rank_at(below));
  return ranks;
}

int BinomialTree::towards(int rank, int other) const {
  if (other == rank) return -1;
  const int distance = distance_of(rank);
  const int further = distance_of(other) - distance;
  return rank_at(distance + (further & -further));  // the lowest bit that is missing
}

}  // namespace niccolite::algorithms
