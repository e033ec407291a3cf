// The binary interface of NCCL's tuner plug-ins, ncclTunerPlugin_v2 to _v6. Names are ours, layouts
// are theirs. Source: reference plugins §5.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/plugin_library.h"

namespace niccolite::planner::abi {

inline constexpr int kOldest = 2, kNewest = 6;

/// The cost table: microseconds by algorithm and protocol, as NCCL numbers them.
enum Row : int { kTree, kRing, kCollnetDirect, kCollnetChain, kNvls, kNvlsTree, kPat, kRows };
enum Column : int { kLL, kLL128, kSimple, kColumns };
inline constexpr float kUnavailable = -1;
using CostTable = float[kRows][kColumns];

struct Domains {
  int count, least_ranks, most_ranks;
};
static_assert(sizeof(Domains) == 12);

/// NCCL's model, which plug-ins from v5 on may change in place.
struct Constants {
  double base_latencies[kRows][kColumns];
  double hardware_latencies[3][kRows][kColumns];
  double ll_bandwidths[4][3];
  double ring_ll128_bandwidths[4][3];
  double tree_ll128_bandwidths[4][3];
  double tree_bandwidths[4][3];
  double nvls_tree_bandwidths[4][3];
};
static_assert(sizeof(Constants) == 1152);

template <int V>
struct Signatures {
  using Init = int (*)(size_t ranks, size_t nodes, PluginLibrary::Logger log, void** context);
  using Choose = int (*)(void* context, int function, size_t bytes, int operations, float** costs,
                         int rows, int columns, int is_registered, int* channels);
};
template <>
struct Signatures<2> {
  using Init = Signatures<4>::Init;
  using Choose = int (*)(void* context, int function, size_t bytes, int has_collnet, int has_nvls,
                         int operations, int* algorithm, int* protocol, int* channels);
};
template <>
struct Signatures<3> {
  using Init = Signatures<4>::Init;
  using Choose = int (*)(void* context, int function, size_t bytes, int operations, float** costs,
                         int rows, int columns, int* channels);
};
template <>
struct Signatures<5> {
  using Init = int (*)(void** context, uint64_t communicator, size_t ranks, size_t nodes,
                       PluginLibrary::Logger log, Domains* domains, Constants* constants);
  using Choose = Signatures<4>::Choose;
};
template <>
struct Signatures<6> : Signatures<5> {};

template <int V>
struct Table {
  const char* name;
  typename Signatures<V>::Init init;
  typename Signatures<V>::Choose choose;
  int (*finalize)(void* context);
};
template <>
struct Table<6> {
  const char* name;
  Signatures<6>::Init init;
  Signatures<6>::Choose choose;
  int (*finalize)(void* context);
  int (*chunk)(void* context, int function, size_t bytes, int algorithm, int protocol, int channels,
               size_t* chunk_bytes);  // may be null
};
static_assert(sizeof(Table<5>) == 32 && sizeof(Table<6>) == 40);

}  // namespace niccolite::planner::abi
