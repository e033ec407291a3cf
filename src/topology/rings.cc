#include "topology/rings.h"

#include <algorithm>
#include <map>

#include "topology/rails.h"
#include "topology/walk.h"

namespace niccolite::topology {
namespace {

/// The ranks of a communicator that are on one machine; places are positions in `ranks`.
struct Machine {
  std::vector<int> ranks;  // of the communicator, ascending
  std::vector<int> gates;  // by rail: the place of the first rank whose network device it is
  Walks walks;
};

/// Returns the places of the ranks that use network devices, ascending by the devices' numbers;
/// without any, the first rank.
std::vector<int> gates_of(const Graph& graph, std::span<const int> rails,
                          std::span<const int> graph_ranks) {
  std::map<int, int> gates;  // by number of the device: place
  for (size_t place = 0; place < graph_ranks.size(); ++place) {
    const auto rank = static_cast<size_t>(graph_ranks[place]);
    const int node = rank < rails.size() ? rails[rank] : -1;
    if (node < 0) continue;
    gates.emplace(graph.nodes()[static_cast<size_t>(node)].net->device, static_cast<int>(place));
  }
  std::vector<int> places;
  for (const auto& [device, place] : gates) places.push_back(place);
  if (places.empty()) places.push_back(0);
  return places;
}

std::vector<Machine> machines_of(const Graph& graph, std::span<const int> rails,
                                 std::span<const int> ranks, std::span<const int> machines) {
  std::vector<std::vector<int>> members;  // by machine, in the order of first ranks
  std::map<int, size_t> numbers;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [known, is_new] = numbers.emplace(machines[rank], members.size());
    if (is_new) members.emplace_back();
    members[known->second].push_back(static_cast<int>(rank));
  }
  std::vector<Machine> result;
  for (std::vector<int>& of_machine : members) {
    std::vector<int> graph_ranks, nodes;
    for (const int rank : of_machine) {
      graph_ranks.push_back(ranks[static_cast<size_t>(rank)]);
      nodes.push_back(graph.gpu_of_rank(graph_ranks.back()));
    }
    result.push_back({.ranks = std::move(of_machine),
                      .gates = gates_of(graph, rails, graph_ranks),
                      .walks = Walks(graph, std::move(nodes))});
  }
  return result;
}

void append(std::vector<int>& ring, const Machine& machine, std::span<const int> order) {
  for (const int place : order) ring.push_back(machine.ranks[static_cast<size_t>(place)]);
}

std::vector<std::vector<int>> rings_inside(Machine& machine) {
  std::vector<std::vector<int>> rings;
  while (static_cast<int>(rings.size()) < kMostRings) {
    const std::vector<int> order = machine.walks.find({.is_closed = true});
    const bool has_own_links = machine.walks.is_free(order);
    if (!rings.empty() && !has_own_links) break;
    append(rings.emplace_back(), machine, order);
    if (!has_own_links) break;  // nor has any other
    machine.walks.take(order, /*is_closed=*/true);
  }
  return rings;
}

std::vector<std::vector<int>> rings_over(std::span<Machine> machines) {
  int nrings = kMostRings;
  for (const Machine& machine : machines)
    nrings = std::min(nrings, static_cast<int>(machine.gates.size()));
  std::vector<std::vector<int>> rings(static_cast<size_t>(nrings));
  for (int number = 0; number < nrings; ++number) {
    const int other = (number + nrings - 1) % nrings;
    for (size_t i = 0; i < machines.size(); ++i) {
      Machine& machine = machines[i];
      Walks::Ends ends{.first = machine.gates[static_cast<size_t>(number)]};
      if (nrings == 1) {
        ends.first = 0;
      } else {
        ends.last = machine.gates[static_cast<size_t>(other)];
        if (i % 2 == 1) {
          std::swap(ends.first, ends.last);
          ends.step = -1;
        }
      }
      const std::vector<int> order = machine.walks.find(ends);
      machine.walks.take(order, /*is_closed=*/false);
      append(rings[static_cast<size_t>(number)], machine, order);
    }
  }
  return rings;
}

}  // namespace

std::vector<std::vector<int>> rings(const Graph& graph, std::span<const int> rails,
                                    std::span<const int> ranks, std::span<const int> machines) {
  std::vector<Machine> all = machines_of(graph, rails, ranks, machines);
  if (all.empty()) return {};
  return all.size() == 1 ? rings_inside(all[0]) : rings_over(all);
}

std::vector<std::vector<int>> rings(const Graph& graph) {
  std::vector<int> ranks, machines;
  for (const int gpu : graph.gpus()) {
    const Node& node = graph.nodes()[static_cast<size_t>(gpu)];
    if (node.gpu->rank < 0) continue;
    ranks.push_back(node.gpu->rank);
    machines.push_back(node.host);
  }
  std::vector<std::vector<int>> result = rings(graph, rails(graph), ranks, machines);
  for (std::vector<int>& ring : result)
    for (int& rank : ring) rank = ranks[static_cast<size_t>(rank)];
  return result;
}

}  // namespace niccolite::topology
