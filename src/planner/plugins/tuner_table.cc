#include "planner/plugins/tuner_table.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace niccolite::planner::abi {
namespace {

int row_of(algorithms::Pattern pattern) {
  using algorithms::Pattern;
  switch (pattern) {
    case Pattern::Ring:
      return kRing;
    case Pattern::Tree:
      return kTree;
    case Pattern::Forwarding:
      return kPat;
    case Pattern::Hierarchical:
      return kNvlsTree;
    case Pattern::NetworkDirect:
      return kCollnetDirect;
    case Pattern::NetworkChain:
      return kCollnetChain;
    case Pattern::Direct:
      break;
  }
  return kNvls;
}

int column_of(executor::Protocol protocol) {
  switch (protocol) {
    case executor::Protocol::LL:
      return kLL;
    case executor::Protocol::LL128:
      return kLL128;
    default:
      return kSimple;
  }
}

}  // namespace

Cell cell_of(const Form& form, executor::Protocol protocol) {
  return {row_of(form.traits().pattern), column_of(protocol)};
}

const char* name_of_row(int row) {
  constexpr const char* kNames[kRows] = {
      "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
  return kNames[row];
}

const char* name_of_column(int column) {
  constexpr const char* kNames[kColumns] = {"LL", "LL128", "SIMPLE"};
  return kNames[column];
}

const Choice* best_of(std::span<const Option> options, Cell cell) {
  const Choice* best = nullptr;
  for (const Option& option : options) {
    if (cell_of(*option.form, option.protocol) != cell) continue;
    for (const Choice& choice : option.choices)
      if (best == nullptr || choice.microseconds < best->microseconds) best = &choice;
  }
  return best;
}

// Source: reference topology §7.1.
Constants default_constants() {
  Constants c{};
  const auto set = [](double(&to)[3], double a, double b, double d) {
    to[0] = a;
    to[1] = b;
    to[2] = d;
  };
  set(c.base_latencies[kTree], 6.8, 14, 8.4);
  set(c.base_latencies[kRing], 6.6, 14, 8.4);
  set(c.base_latencies[kPat], 8, 8, 8);
  struct Hops {
    Row row;
    double links[3][3];  // NVLink, PCI, network
  };
  constexpr Hops kHops[] = {{kTree, {{0.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}}},
                            {kRing, {{0.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}}},
                            {kCollnetDirect, {{0, 0, 3.7}, {0, 0, 3.7}, {0, 0, 31}}},
                            {kCollnetChain, {{0, 0, 2.8}, {0, 0, 2.8}, {0, 0, 30}}},
                            {kNvls, {{0, 0, 25}, {0, 0, 0}, {0, 0, 18}}},
                            {kNvlsTree, {{0, 0, 25}, {0, 0, 0}, {0, 0, 20.9}}},
                            {kPat, {{0, 0, 4}, {0, 0, 4}, {0, 0, 14}}}};
  for (const Hops& hops : kHops)
    for (size_t link = 0; link < 3; ++link)
      std::copy_n(hops.links[link], 3, c.hardware_latencies[link][hops.row]);
  const double ll[4][3] = {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}};
  const double ring[4][3] = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {40, 40, 40}};
  const double tree128[4][3] = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}};
  const double tree[4][3] = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}};
  const double nvls[4][3] = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 80}};
  std::memcpy(c.ll_bandwidths, ll, sizeof ll);
  std::memcpy(c.ring_ll128_bandwidths, ring, sizeof ring);
  std::memcpy(c.tree_ll128_bandwidths, tree128, sizeof tree128);
  std::memcpy(c.tree_bandwidths, tree, sizeof tree);
  std::memcpy(c.nvls_tree_bandwidths, nvls, sizeof nvls);
  return c;
}

Domains domains_of(const Tuner::Communicator& of) {
  std::map<int, int> ranks;
  for (const int machine : of.machines) ++ranks[machine];
  if (ranks.empty()) ranks[0] = of.ranks;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return {.count = static_cast<int>(ranks.size()),
          .least_ranks = std::min_element(ranks.begin(), ranks.end(), fewer)->second,
          .most_ranks = std::max_element(ranks.begin(), ranks.end(), fewer)->second};
}

}  // namespace niccolite::planner::abi
