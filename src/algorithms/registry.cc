#include "algorithms/registry.h"

#include <algorithm>
#include <set>
#include <vector>

#include "algorithms/all_gather.h"
#include "algorithms/all_reduce.h"
#include "algorithms/all_to_all.h"
#include "algorithms/broadcast.h"
#include "algorithms/gather.h"
#include "algorithms/loaded.h"
#include "algorithms/reduce.h"
#include "algorithms/reduce_scatter.h"
#include "algorithms/scatter.h"

namespace niccolite::algorithms {
namespace {

using enum schedule::Collective;

// Loads, by how data go. Peers that a rank stores to, or waits for, count as steps like hops.

double others(int n) { return std::max(1, n - 1); }
/// Hops of a logarithmic algorithm.
double levels(int n) {
  double hops = 1;
  for (int reach = 1; 2 * reach < n; reach *= 2) ++hops;
  return hops;
}

Load twice_round(int n) { return {2 * others(n), 2 * others(n) / n, n}; }
Load once_round(int n) { return {others(n), others(n), 1}; }
Load along_a_chain(int n) { return {others(n), 1, 1}; }
Load to_all(int n) { return {double(n), others(n), 1}; }
Load to_owners_and_back(int n) { return {double(n), 2 * others(n) / n, n}; }
Load by_owners(int n) { return {double(n), 1, std::max(1, n - 1)}; }
Load from_root_by_owners(int n) { return {2, 1, std::max(1, n - 1)}; }
Load forwarded(int n) { return {levels(n), others(n), 1}; }
/// Every block is sent once for each bit of its distance.
Load forwarded_to_all(int n) { return {levels(n), std::max(1.0, n / 2.0 * levels(n)), 1}; }
Load one_message(int) { return {2, 1, 1}; }

// Traits, for a table whose rows are lines.

constexpr Traits ring(Load (*load)(int)) { return {.load = load, .pattern = Pattern::Ring}; }
constexpr Traits chain(Load (*load)(int)) {
  return {.load = load, .pattern = Pattern::Ring, .gains_by_halves = true};
}
constexpr Traits forwarding(Load (*load)(int)) {
  return {.load = load, .pattern = Pattern::Forwarding};
}
/// Every rank with every other.
constexpr Traits among_all(Load (*load)(int), Suits suits = Suits::Anything) {
  return {.load = load, .connects_all = true, .suits = suits, .gains_by_workers = true};
}
constexpr Traits kOneStep{.load = to_all, .connects_all = true, .is_one_step = true};
constexpr Traits kOneShot{
    .load = to_all, .connects_all = true, .is_one_step = true, .suits = Suits::LowestLatency};
constexpr Traits kDirect{
    .load = to_all, .connects_all = true, .is_one_step = true, .gains_by_workers = true};
constexpr Traits kTree{.pattern = Pattern::Tree};
constexpr Traits kTreeOfMachines{.pattern = Pattern::Tree, .follows_machines = true};
constexpr Traits kPatOfMachines{
    .load = forwarded, .pattern = Pattern::Forwarding, .follows_machines = true};
constexpr Traits kHierarchical{.connects_machines = true,
                               .suits = Suits::SeveralMachines,
                               .pattern = Pattern::Hierarchical,
                               .follows_machines = true};
constexpr Traits kRailTrees{.suits = Suits::SeveralMachines,
                            .pattern = Pattern::Hierarchical,
                            .follows_machines = true,
                            .gains_by_workers = true};
constexpr Traits through_network(Pattern pattern) {
  return {.connects_machines = true,
          .suits = Suits::SeveralMachines,
          .pattern = pattern,
          .through_network = true,
          .follows_machines = true};
}

constexpr auto kThree = Suits::ThreeRanks;

constexpr int kRing = kMaxRingRanks;
constexpr int kAmongAll = kMaxDirectRanks;
constexpr int kForwarding = kMaxForwardingRanks;

// clang-format off
constexpr Algorithm kAlgorithms[] = {
//   name                      of             ranks           built by                          traits
    {"ring",                   AllReduce,     1, kRing,       all_reduce_ring,                  ring(twice_round)},
    {"one_shot",               AllReduce,     1, kAmongAll,   all_reduce_one_shot,              kOneShot},
    {"two_shot",               AllReduce,     1, kAmongAll,   all_reduce_two_shot,              among_all(to_owners_and_back)},
    {"tree",                   AllReduce,     1, kRing,       all_reduce_tree,                  kTreeOfMachines},
    {"recursive_doubling",     AllReduce,     1, kRing,       all_reduce_recursive_doubling,    kTree},
    {"hierarchical",           AllReduce,     1, kAmongAll,   all_reduce_hierarchical,          kHierarchical},
    {"rail_trees",             AllReduce,     1, kAmongAll,   all_reduce_rail_trees,            kRailTrees},
    {"collnetdirect",          AllReduce,     1, kAmongAll,   all_reduce_collnet_direct,        through_network(Pattern::NetworkDirect)},
    {"collnetchain",           AllReduce,     1, kAmongAll,   all_reduce_collnet_chain,         through_network(Pattern::NetworkChain)},

    {"ring",                   Reduce,        1, kRing,       reduce_ring,                      chain(along_a_chain)},
    {"direct",                 Reduce,        1, kAmongAll,   reduce_direct,                    kOneStep},
    {"two_shot",               Reduce,        1, kAmongAll,   reduce_two_shot,                  among_all(by_owners, kThree)},
    {"tree",                   Reduce,        1, kRing,       reduce_tree,                      kTreeOfMachines},
    {"hierarchical",           Reduce,        1, kAmongAll,   reduce_hierarchical,              kHierarchical},

    {"ring",                   Broadcast,     1, kRing,       broadcast_ring,                   chain(along_a_chain)},
    {"direct",                 Broadcast,     1, kAmongAll,   broadcast_direct,                 kOneStep},
    {"scatter_gather",         Broadcast,     1, kAmongAll,   broadcast_scatter_gather,         among_all(from_root_by_owners, kThree)},
    {"tree",                   Broadcast,     1, kRing,       broadcast_tree,                   kTreeOfMachines},
    {"hierarchical",           Broadcast,     1, kAmongAll,   broadcast_hierarchical,           kHierarchical},

    {"ring",                   AllGather,     1, kRing,       all_gather_ring,                  ring(once_round)},
    {"direct",                 AllGather,     1, kAmongAll,   all_gather_direct,                kDirect},
    {"pat",                    AllGather,     1, kRing,       all_gather_pat,                   kPatOfMachines},
    {"hierarchical",           AllGather,     1, kAmongAll,   all_gather_hierarchical,          kHierarchical},
    {"collnetdirect",          AllGather,     1, kAmongAll,   all_gather_collnet_direct,        through_network(Pattern::NetworkDirect)},

    {"ring",                   ReduceScatter, 1, kRing,       reduce_scatter_ring,              ring(once_round)},
    {"direct",                 ReduceScatter, 1, kAmongAll,   reduce_scatter_direct,            kDirect},
    {"pat",                    ReduceScatter, 1, kRing,       reduce_scatter_pat,               kPatOfMachines},
    {"hierarchical",           ReduceScatter, 1, kAmongAll,   reduce_scatter_hierarchical,      kHierarchical},
    {"collnetdirect",          ReduceScatter, 1, kAmongAll,   reduce_scatter_collnet_direct,    through_network(Pattern::NetworkDirect)},

    {"direct",                 AllToAll,      1, kAmongAll,   all_to_all_direct,                kDirect},
    {"pat",                    AllToAll,      1, kForwarding, all_to_all_pat,                   forwarding(forwarded_to_all)},
    {"hierarchical",           AllToAll,      1, kAmongAll,   all_to_all_hierarchical,          kHierarchical},

    {"direct",                 Gather,        1, kAmongAll,   gather_direct,                    kDirect},
    {"pat",                    Gather,        1, kRing,       gather_pat,                       forwarding(forwarded)},

    {"direct",                 Scatter,       1, kAmongAll,   scatter_direct,                   kDirect},
    {"pat",                    Scatter,       1, kRing,       scatter_pat,                      forwarding(forwarded)},

    // Of messages.
    {"direct",                 PointToPoint,  1, kRing,       nullptr,                          {.load = one_message}},
};
// clang-format on

/// The places of the first algorithm of `collective`, and of the one behind its last.
constexpr std::pair<size_t, size_t> range_of(std::span<const Algorithm> algorithms,
                                             schedule::Collective collective) {
  size_t first = 0;
  while (algorithms[first].collective != collective) ++first;
  size_t last = first;
  while (last < algorithms.size() && algorithms[last].collective == collective) ++last;
  return {first, last};
}

constexpr bool is_in_order() {
  size_t counted = 0;
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto [first, last] = range_of(kAlgorithms, static_cast<schedule::Collective>(c));
    size_t forms = 0;
    for (size_t i = first; i < last; ++i)
      forms += 1 + (kAlgorithms[i].traits.gains_by_workers ? 1 : 0) +
               (kAlgorithms[i].traits.gains_by_halves ? 1 : 0);
    if (forms > kMostFormsOfCollective / 2) return false;  // files have the other half
    counted += last - first;
  }
  return counted == std::size(kAlgorithms);
}
static_assert(is_in_order(), "algorithms of one collective lie side by side, and are not too many");

bool is_built_in(schedule::Collective collective, std::string_view name) {
  const auto is_named = [&](const Algorithm& each) {
    if (each.collective != collective || !name.starts_with(each.name)) return false;
    const std::string_view rest = name.substr(std::string_view(each.name).size());
    return rest.empty() || rest == kPlain || rest == kByWorkers || rest == kByHalves;
  };
  return std::ranges::any_of(kAlgorithms, is_named);
}

/// The peers that the busiest rank of `schedule` sends to.
int most_peers(const schedule::Schedule& schedule) {
  std::vector<std::set<int>> peers(static_cast<size_t>(schedule.nranks));
  for (const schedule::Connection& each : schedule.connections)
    peers[static_cast<size_t>(each.sender)].insert(each.receiver);
  size_t most = 0;
  for (const std::set<int>& each : peers) most = std::max(most, each.size());
  return static_cast<int>(most);
}

/// The traits that the schedules of files show.
Traits traits_of(const Loaded& loaded) {
  constexpr int kOfTrees = 3;  // a parent and two children
  int peers = 0;
  bool connects_all = false;
  for (const auto& [nranks, file] : loaded.by_ranks) {
    const int most = most_peers(file.file.schedule);
    peers = std::max(peers, most);
    connects_all |= nranks > kOfTrees + 1 && most == nranks - 1;
  }
  return {.connects_all = connects_all,
          .pattern = connects_all        ? Pattern::Direct
                     : peers <= 1        ? Pattern::Ring
                     : peers <= kOfTrees ? Pattern::Tree
                                         : Pattern::Direct};
}

/// The built-in algorithms and the algorithms of files, which the first call reads.
struct Registry {
  Registry() : files(loaded_algorithms(is_built_in)) {
    for (int c = 0; c < schedule::kCollectives; ++c) {
      const auto collective = static_cast<schedule::Collective>(c);
      const auto [first, last] = range_of(kAlgorithms, collective);
      all.insert(all.end(), kAlgorithms + first, kAlgorithms + last);
      for (const std::unique_ptr<Loaded>& each : files.all())
        if (each->collective == collective)
          all.push_back({each->name.c_str(), collective, each->by_ranks.begin()->first,
                         each->by_ranks.rbegin()->first, Build(*each), traits_of(*each)});
    }
  }
  const LoadedSet& files;
  std::vector<Algorithm> all;
};

const Registry& registry() {
  static const Registry& known = *new Registry;  // never destroyed: communicators outlive main()
  return known;
}

}  // namespace

Result<schedule::Schedule> Build::operator()(int nranks, const Options& options) const {
  return loaded_ != nullptr ? loaded_->build(nranks, options) : function_(nranks, options);
}

Status register_file(const std::string& origin, std::string_view text) {
  return register_text(origin, text, is_built_in);
}

std::span<const std::string> refused_files() { return registry().files.failures(); }

std::span<const Algorithm> all() {
  const std::span<const Algorithm> every = registry().all;
  return every.first(range_of(every, PointToPoint).first);
}

std::span<const Algorithm> of(schedule::Collective collective) {
  const std::span<const Algorithm> every = registry().all;
  const auto [first, last] = range_of(every, collective);
  return every.subspan(first, last - first);
}

const Algorithm* find(schedule::Collective collective, std::string_view name) {
  for (const Algorithm& algorithm : of(collective))
    if (algorithm.name == name) return &algorithm;
  return nullptr;
}

const Algorithm& of_messages() { return of(PointToPoint).front(); }

}  // namespace niccolite::algorithms
