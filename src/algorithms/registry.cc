#include "algorithms/registry.h"

#include <algorithm>

#include "algorithms/all_gather.h"
#include "algorithms/all_reduce.h"
#include "algorithms/all_to_all.h"
#include "algorithms/broadcast.h"
#include "algorithms/gather.h"
#include "algorithms/reduce.h"
#include "algorithms/reduce_scatter.h"
#include "algorithms/scatter.h"
#include "algorithms/workers.h"

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
Load along_two_chains(int n) { return {others(n), 1, 2}; }
Load to_all(int n) { return {double(n), others(n), 1}; }
Load to_owners_and_back(int n) { return {double(n), 2 * others(n) / n, n}; }
Load by_owners(int n) { return {double(n), 1, std::max(1, n - 1)}; }
Load from_root_by_owners(int n) { return {2, 1, std::max(1, n - 1)}; }
Load forwarded(int n) { return {levels(n), others(n), 1}; }
/// Every block is sent once for each bit of its distance.
Load forwarded_to_all(int n) { return {levels(n), std::max(1.0, n / 2.0 * levels(n)), 1}; }
Load one_message(int) { return {2, 1, 1}; }

constexpr Traits kDirect{.load = to_all, .connects_all = true};
constexpr Traits kDirectInOneStep{.load = to_all, .connects_all = true, .is_one_step = true};
constexpr Traits kDirectWorkers{.family = "direct", .load = to_all, .connects_all = true};

constexpr Traits kTree{.pattern = Pattern::Tree};
constexpr Traits kTreeOfMachines{.pattern = Pattern::Tree, .follows_machines = true};
constexpr Traits kPatOfMachines{
    .load = forwarded, .pattern = Pattern::Forwarding, .follows_machines = true};
constexpr Traits kHierarchical{
    .suits = Suits::SeveralMachines, .pattern = Pattern::Hierarchical, .follows_machines = true};

constexpr Algorithm kAlgorithms[] = {
    {"ring",
     AllReduce,
     1,
     kMaxRingRanks,
     all_reduce_ring,
     {.load = twice_round, .pattern = Pattern::Ring}},
    {"one_shot",
     AllReduce,
     1,
     kMaxDirectRanks,
     all_reduce_one_shot,
     {.load = to_all, .connects_all = true, .is_one_step = true, .suits = Suits::LowestLatency}},
    {"two_shot",
     AllReduce,
     1,
     kMaxDirectRanks,
     all_reduce_two_shot,
     {.load = to_owners_and_back, .connects_all = true}},
    {"two_shot_workers",
     AllReduce,
     1,
     kMaxWorkersRanks,
     all_reduce_two_shot_workers,
     {.family = "two_shot", .load = to_owners_and_back, .connects_all = true}},
    {"tree", AllReduce, 1, kMaxRingRanks, all_reduce_tree, kTreeOfMachines},
    {"recursive_doubling", AllReduce, 1, kMaxRingRanks, all_reduce_recursive_doubling, kTree},
    {"hierarchical", AllReduce, 1, kMaxDirectRanks, all_reduce_hierarchical, kHierarchical},

    {"ring",
     Reduce,
     1,
     kMaxRingRanks,
     reduce_ring,
     {.load = along_a_chain, .pattern = Pattern::Ring}},
    {"ring_halves",
     Reduce,
     1,
     kMaxRingRanks,
     reduce_ring_halves,
     {.family = "ring", .load = along_two_chains, .pattern = Pattern::Ring}},
    {"direct", Reduce, 1, kMaxDirectRanks, reduce_direct, kDirectInOneStep},
    {"two_shot",
     Reduce,
     1,
     kMaxDirectRanks,
     reduce_two_shot,
     {.load = by_owners, .connects_all = true, .suits = Suits::ThreeRanks}},
    {"two_shot_workers",
     Reduce,
     1,
     kMaxWorkersRanks,
     reduce_two_shot_workers,
     {.family = "two_shot", .load = by_owners, .connects_all = true, .suits = Suits::ThreeRanks}},
    {"tree", Reduce, 1, kMaxRingRanks, reduce_tree, kTreeOfMachines},
    {"hierarchical", Reduce, 1, kMaxDirectRanks, reduce_hierarchical, kHierarchical},

    {"ring",
     Broadcast,
     1,
     kMaxRingRanks,
     broadcast_ring,
     {.load = along_a_chain, .pattern = Pattern::Ring}},
    {"ring_halves",
     Broadcast,
     1,
     kMaxRingRanks,
     broadcast_ring_halves,
     {.family = "ring", .load = along_two_chains, .pattern = Pattern::Ring}},
    {"direct", Broadcast, 1, kMaxDirectRanks, broadcast_direct, kDirectInOneStep},
    {"scatter_gather",
     Broadcast,
     1,
     kMaxDirectRanks,
     broadcast_scatter_gather,
     {.load = from_root_by_owners, .connects_all = true, .suits = Suits::ThreeRanks}},
    {"scatter_gather_workers",
     Broadcast,
     1,
     kMaxWorkersRanks,
     broadcast_scatter_gather_workers,
     {.family = "scatter_gather",
      .load = from_root_by_owners,
      .connects_all = true,
      .suits = Suits::ThreeRanks}},
    {"tree", Broadcast, 1, kMaxRingRanks, broadcast_tree, kTreeOfMachines},
    {"hierarchical", Broadcast, 1, kMaxDirectRanks, broadcast_hierarchical, kHierarchical},

    {"ring",
     AllGather,
     1,
     kMaxRingRanks,
     all_gather_ring,
     {.load = once_round, .pattern = Pattern::Ring}},
    {"direct", AllGather, 1, kMaxDirectRanks, all_gather_direct, kDirect},
    {"direct_workers",
     AllGather,
     1,
     kMaxWorkersRanks,
     all_gather_direct_workers,
     {.family = "direct", .load = to_all, .connects_all = true, .is_one_step = true}},
    {"pat", AllGather, 1, kMaxRingRanks, all_gather_pat, kPatOfMachines},
    {"hierarchical", AllGather, 1, kMaxDirectRanks, all_gather_hierarchical, kHierarchical},

    {"ring",
     ReduceScatter,
     1,
     kMaxRingRanks,
     reduce_scatter_ring,
     {.load = once_round, .pattern = Pattern::Ring}},
    {"direct", ReduceScatter, 1, kMaxDirectRanks, reduce_scatter_direct, kDirect},
    {"direct_workers", ReduceScatter, 1, kMaxWorkersRanks, reduce_scatter_direct_workers,
     kDirectWorkers},
    {"pat", ReduceScatter, 1, kMaxRingRanks, reduce_scatter_pat, kPatOfMachines},
    {"hierarchical", ReduceScatter, 1, kMaxDirectRanks, reduce_scatter_hierarchical, kHierarchical},

    {"direct", AllToAll, 1, kMaxDirectRanks, all_to_all_direct, kDirect},
    {"direct_workers", AllToAll, 1, kMaxWorkersRanks, all_to_all_direct_workers, kDirectWorkers},
    {"pat",
     AllToAll,
     1,
     kMaxForwardingRanks,
     all_to_all_pat,
     {.load = forwarded_to_all, .pattern = Pattern::Forwarding}},
    {"hierarchical", AllToAll, 1, kMaxDirectRanks, all_to_all_hierarchical, kHierarchical},

    {"direct", Gather, 1, kMaxDirectRanks, gather_direct, kDirect},
    {"direct_workers", Gather, 1, kMaxWorkersRanks, gather_direct_workers, kDirectWorkers},
    {"pat",
     Gather,
     1,
     kMaxRingRanks,
     gather_pat,
     {.load = forwarded, .pattern = Pattern::Forwarding}},

    {"direct", Scatter, 1, kMaxDirectRanks, scatter_direct, kDirect},
    {"direct_workers", Scatter, 1, kMaxWorkersRanks, scatter_direct_workers, kDirectWorkers},
    {"pat",
     Scatter,
     1,
     kMaxRingRanks,
     scatter_pat,
     {.load = forwarded, .pattern = Pattern::Forwarding}},

    // Of messages.
    {"direct", PointToPoint, 1, kMaxRingRanks, nullptr, {.load = one_message}},
};

/// Where of() begins and ends.
constexpr std::pair<size_t, size_t> range_of(schedule::Collective collective) {
  size_t first = 0;
  while (kAlgorithms[first].collective != collective) ++first;
  size_t last = first;
  while (last < std::size(kAlgorithms) && kAlgorithms[last].collective == collective) ++last;
  return {first, last};
}

constexpr bool is_in_order() {
  size_t counted = 0;
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto [first, last] = range_of(static_cast<schedule::Collective>(c));
    if (last - first > kMostOfCollective) return false;
    counted += last - first;
  }
  return counted == std::size(kAlgorithms);
}
static_assert(is_in_order(), "algorithms of one collective lie side by side, and are not too many");

}  // namespace

std::span<const Algorithm> all() {
  return std::span(kAlgorithms).first(range_of(PointToPoint).first);
}

std::span<const Algorithm> of(schedule::Collective collective) {
  const auto [first, last] = range_of(collective);
  return std::span(kAlgorithms).subspan(first, last - first);
}

size_t index_of(const Algorithm& algorithm) {
  return static_cast<size_t>(&algorithm - of(algorithm.collective).data());
}

const Algorithm* find(schedule::Collective collective, std::string_view name) {
  for (const Algorithm& algorithm : of(collective))
    if (algorithm.name == name) return &algorithm;
  return nullptr;
}

const Algorithm& of_messages() { return of(PointToPoint).front(); }

const Algorithm* one_step(schedule::Collective collective) {
  for (const Algorithm& algorithm : of(collective))
    if (algorithm.traits.is_one_step) return &algorithm;
  return nullptr;
}

std::string selector_of(const Algorithm& algorithm) {
  const auto shares_name = [&](const Algorithm& other) {
    return &other != &algorithm && other.family() == algorithm.name;
  };
  const bool has_forms = std::ranges::any_of(of(algorithm.collective), shares_name);
  return has_forms ? std::string(algorithm.name) + "_plain" : algorithm.name;
}

}  // namespace niccolite::algorithms
