#include "comm/membership.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "topology/graph.h"
#include "topology/rails.h"

namespace niccolite::comm {

void Membership::set_ranks(std::vector<int> machines, std::vector<int> devices, std::string gpu) {
  machines_ = std::move(machines);
  devices_ = std::move(devices);
  gpu_ = std::move(gpu);
}

void Membership::set_graph(std::shared_ptr<const topology::Graph> graph) {
  places_.graph = std::move(graph);
  places_.rails = topology::rails(*places_.graph);
  places_.graph_ranks.resize(static_cast<size_t>(nranks()));
  std::iota(places_.graph_ranks.begin(), places_.graph_ranks.end(), 0);
}

void Membership::derive(const Membership& parent, std::span<const int> ranks) {
  gpu_ = parent.gpu_;
  shares_gpus_ = parent.shares_gpus_;
  if (ranks.size() == 1) return;
  for (const int peer : ranks) {
    machines_.push_back(parent.machines_[static_cast<size_t>(peer)]);
    devices_.push_back(parent.devices_[static_cast<size_t>(peer)]);
    if (parent.places_.graph != nullptr)
      places_.graph_ranks.push_back(parent.places_.graph_ranks[static_cast<size_t>(peer)]);
  }
  places_.graph = parent.places_.graph;
  places_.rails = parent.places_.rails;
}

bool Membership::has_whole_machines_of(const Membership& parent) const {
  std::map<int, int> missing;  // ranks, by machine
  for (const int machine : parent.machines_) ++missing[machine];
  for (const int machine : machines_) --missing[machine];
  return std::ranges::all_of(machines_, [&](int machine) { return missing[machine] == 0; });
}

bool Membership::spans_machines() const {
  return std::ranges::any_of(machines_,
                             [this](int machine) { return machine != machines_.front(); });
}

int Membership::count_machines() const {
  return std::max<int>(1, static_cast<int>(std::set(machines_.begin(), machines_.end()).size()));
}

int Membership::team_size() const {
  if (!spans_machines()) return nranks();
  const auto other =
      std::ranges::find_if(machines_, [this](int machine) { return machine != machines_.front(); });
  const auto size = static_cast<size_t>(other - machines_.begin());
  if (machines_.size() % size != 0) return 1;
  for (size_t rank = 0; rank < machines_.size(); ++rank)
    if (machines_[rank] != machines_[rank / size * size]) return 1;
  return static_cast<int>(size);
}

transport::Carrier Membership::place_on_network() const {
  transport::Carrier carrier;
  if (!machines_.empty()) {
    const int own = machines_[static_cast<size_t>(rank())];
    carrier.number =
        static_cast<size_t>(std::count(machines_.begin(), machines_.begin() + rank(), own));
    carrier.ranks_of_machine = static_cast<int>(std::ranges::count(machines_, own));
  }
  if (places_.graph != nullptr) {
    const auto known_as = static_cast<size_t>(places_.graph_ranks[static_cast<size_t>(rank())]);
    // The graph has the first of several ranks of one GPU.
    const int own = known_as < places_.rails.size() ? places_.rails[known_as] : -1;
    const topology::Graph& graph = *places_.graph;
    if (own >= 0) {
      std::vector<int> nets =
          topology::nearest_nets(graph, graph.gpu_of_rank(static_cast<int>(known_as)));
      std::rotate(nets.begin(), std::ranges::find(nets, own), nets.end());
      for (const int net : nets)
        carrier.nearest.push_back(graph.nodes()[static_cast<size_t>(net)].name);
    }
  }
  return carrier;
}

topology::PathType Membership::distance_to_port(const std::string& port) const {
  if (places_.graph == nullptr) return topology::PathType::DIS;
  const topology::Graph& graph = *places_.graph;
  const int gpu = graph.gpu_of_rank(places_.graph_ranks[static_cast<size_t>(rank())]);
  if (gpu < 0) return topology::PathType::DIS;
  const auto node_of = [&](int at) -> const topology::Node& {
    return graph.nodes()[static_cast<size_t>(at)];
  };
  const auto net = std::ranges::find_if(graph.nets(), [&](int at) {
    return node_of(at).host == node_of(gpu).host && node_of(at).name == port;
  });
  return net == graph.nets().end() ? topology::PathType::DIS : graph.path(gpu, *net).type;
}

}  // namespace niccolite::comm
