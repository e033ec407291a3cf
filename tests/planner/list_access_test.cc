// What find_list_access() says, carried out tile by tile: every output gets what the collective
// says, each of its tiles by one rank, and in place no rank reads what another stores to.
#include "executor/list_access.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "planner/choice/list_choice.h"
#include "planner/settings.h"

namespace niccolite::planner {
namespace {

using executor::ListAccess;

constexpr uint32_t kTiles = 17;  // of a block; more than twice the ranks

/// A tile of a rank's input or output: rank, block, tile.
using Tile = std::tuple<uint32_t, uint32_t, uint32_t>;
/// What lies in a tile: the tiles of inputs that were reduced into it.
using Reduction = std::multiset<Tile>;

struct Outcome {
  std::map<Tile, Reduction> outputs;
  std::map<Tile, std::vector<uint32_t>> readers;  // of tiles of inputs
  std::map<Tile, std::vector<uint32_t>> writers;  // of tiles of outputs
};

/// The part of `rank`, by the functions that the kernel and the executor of virtual GPUs ask.
void carry_out(const ListAccess& access, uint32_t nranks, uint32_t work, uint32_t rank,
               Outcome& outcome) {
  for (uint32_t tile = next_tile_of(access, rank, work, 0, nranks); tile < kTiles;
       tile += tile_stride(access, nranks)) {
    Reduction reduced;
    for (uint32_t of = 0; of < nranks; ++of) {
      if (!executor::has_rank(sources_of(access, rank), of)) continue;
      const Tile source{of, source_block_of(access, rank), tile};
      reduced.insert(source);
      outcome.readers[source].push_back(rank);
    }
    for (uint32_t of = 0; of < nranks; ++of) {
      if (!executor::has_rank(targets_of(access, rank), of)) continue;
      const Tile target{of, target_block_of(access, rank), tile};
      outcome.outputs[target] = reduced;
      outcome.writers[target].push_back(rank);
    }
  }
}

/// What the output of `rank` has in block `block` when the collective is done; empty: nothing.
Reduction expected(Collective collective, uint32_t nranks, uint32_t root, uint32_t rank,
                   uint32_t block, uint32_t tile) {
  Reduction reduced;
  const auto reduce_all = [&](uint32_t of_block) {
    for (uint32_t of = 0; of < nranks; ++of) reduced.insert({of, of_block, tile});
  };
  switch (collective) {
    case Collective::AllReduce:
      if (block == 0) reduce_all(0);
      break;
    case Collective::Reduce:
      if (block == 0 && rank == root) reduce_all(0);
      break;
    case Collective::ReduceScatter:
      if (block == 0) reduce_all(rank);
      break;
    case Collective::Broadcast:
      if (block == 0) reduced.insert({root, 0, tile});
      break;
    default:
      reduced.insert({block, 0, tile});  // AllGather
      break;
  }
  return reduced;
}

/// Where a tile of the input lies in place, as a tile of the output.
Tile in_output(Collective collective, const Tile& input) {
  const auto [rank, block, tile] = input;
  if (collective == Collective::AllGather) return {rank, rank, tile};
  // The output is block `rank` of the input: others are no part of it.
  if (collective == Collective::ReduceScatter) return {rank, block == rank ? 0 : ~0u, tile};
  return input;
}

void check(Collective collective, uint32_t nranks, uint32_t root, uint32_t work) {
  Settings settings = make_settings(gpu::Kind::Cuda, static_cast<int>(nranks), {}).take();
  set_reach(settings, true);
  const auto access = find_list_access(settings, collective, static_cast<int>(root));
  ASSERT_TRUE(access.has_value());
  Outcome outcome;
  for (uint32_t rank = 0; rank < nranks; ++rank) carry_out(*access, nranks, work, rank, outcome);
  const uint32_t blocks = collective == Collective::AllGather ? nranks : 1;
  for (uint32_t rank = 0; rank < nranks; ++rank)
    for (uint32_t block = 0; block < blocks; ++block)
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        const Tile at{rank, block, tile};
        EXPECT_EQ(outcome.outputs[at], expected(collective, nranks, root, rank, block, tile));
        EXPECT_LE(outcome.writers[at].size(), 1u);
      }
  for (const auto& [input, readers] : outcome.readers) {
    const std::vector<uint32_t>& writers = outcome.writers[in_output(collective, input)];
    if (!writers.empty()) {
      EXPECT_EQ(readers, writers) << "in place";
    }
  }
}

TEST(ListAccess, DoesWhatTheCollectiveSaysInPlaceToo) {
  for (uint32_t nranks = 2; nranks <= executor::kMostRanksOfListAccess; ++nranks)
    for (const Collective collective :
         {Collective::AllReduce, Collective::Reduce, Collective::Broadcast,
          Collective::ReduceScatter, Collective::AllGather})
      for (uint32_t root = 0; root < nranks; ++root)
        for (uint32_t work = 0; work < nranks; ++work)
          ASSERT_NO_FATAL_FAILURE(check(collective, nranks, root, work))
              << function_name(collective) << " of " << nranks << ", root " << root;
}

TEST(ListAccess, IsForBuffersThatAllRanksReach) {
  const auto find = [](gpu::Kind machine, int nranks, bool reaches, const char* protocols) {
    if (protocols != nullptr) setenv("NCCL_PROTO", protocols, 1);
    Settings settings = make_settings(machine, nranks, {}).take();
    unsetenv("NCCL_PROTO");
    if (!reaches) set_reach(settings, false);
    return find_list_access(settings, Collective::AllReduce, 0).has_value();
  };
  EXPECT_TRUE(find(gpu::Kind::Cuda, 2, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 2, false, nullptr));
  EXPECT_TRUE(find(gpu::Kind::Virtual, 2, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Virtual, 2, false, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 9, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 2, true, "Simple")) << "the user has asked for something else";
}

}  // namespace
}  // namespace niccolite::planner
