// ListAccess: the accesses of ranks to each other's buffers in a list over buffers that all of them
// reach (Launch::list_access). No data pass through slots: each rank reads inputs, its own and
// others', and stores results to outputs. Host and device include this file.
//
//   Whole     the inputs, reduced, into all outputs     all-reduce, reduce, broadcast
//   Scatter   block r of all inputs, reduced, into      reduce-scatter
//             the output of rank r
//   Gather    the input of rank r into block r of      all-gather
//             all outputs
//
// An operation's blocks are cut into tiles. Of a Whole operation each tile is one rank's
// (owner_of_tile()), which alone reads it, and alone stores it: so input and output may be the same
// memory. Of Scatter rank r stores to its own output, and of Gather it reads its own input: in
// place these are block r of the other buffer, which no other rank reads, or stores to.
#pragma once

#include <cstdint>

namespace niccolite::executor {

enum class ListForm : uint8_t { Whole, Scatter, Gather };

struct ListAccess {
  ListForm form = ListForm::Whole;
  uint8_t inputs = 0;   // bits by rank: whose inputs are read
  uint8_t outputs = 0;  // bits by rank: whose outputs are stored to

  friend bool operator==(const ListAccess&, const ListAccess&) = default;
};

inline constexpr uint32_t kMostRanksOfListAccess = 8;
inline constexpr uint32_t kListTileBytes = 2048;

/// The position at which a channel of the launch begins, or ends.
struct ListPosition {
  uint16_t work;
  uint16_t tile;  // of the work's block
};

/// Bytes of a buffer, all blocks of an operation: more than the positions of tiles can name.
inline constexpr uint64_t kMostListBufferBytes =
    uint64_t{kMostRanksOfListAccess} * kListTileBytes * (uint64_t{1} << 16);
static_assert(kMostListBufferBytes < uint64_t{1} << 32);

/// Are several inputs reduced?
constexpr bool reduces(const ListAccess& access) {
  return access.form != ListForm::Gather && (access.inputs & (access.inputs - 1)) != 0;
}

constexpr bool has_rank(uint32_t ranks, uint32_t rank) { return (ranks >> rank & 1) != 0; }

/// The owner of a tile of a Whole operation. Small operations have one tile: they too are shared
/// out among the ranks.
constexpr uint32_t owner_of_tile(uint32_t work, uint32_t tile, uint32_t nranks) {
  return (work + tile) % nranks;
}

// The part of `rank` in a tile that it moves: it reduces the tile of all its sources, each in one
// block of an input, and stores the result to all its targets, each in one block of an output.

/// Bits by rank: whose inputs it reads.
constexpr uint32_t sources_of(const ListAccess& access, uint32_t rank) {
  return access.form == ListForm::Gather ? 1u << rank : access.inputs;
}
/// Bits by rank: whose outputs it stores to.
constexpr uint32_t targets_of(const ListAccess& access, uint32_t rank) {
  return access.form == ListForm::Scatter ? 1u << rank : access.outputs;
}
constexpr uint32_t source_block_of(const ListAccess& access, uint32_t rank) {
  return access.form == ListForm::Scatter ? rank : 0;
}
constexpr uint32_t target_block_of(const ListAccess& access, uint32_t rank) {
  return access.form == ListForm::Gather ? rank : 0;
}
/// The first tile from `tile` on that `rank` moves, and from each of its tiles to the next one.
constexpr uint32_t next_tile_of(const ListAccess& access, uint32_t rank, uint32_t work,
                                uint32_t tile, uint32_t nranks) {
  if (access.form != ListForm::Whole) return tile;
  return tile + (rank + nranks - owner_of_tile(work, tile, nranks)) % nranks;
}
constexpr uint32_t tile_stride(const ListAccess& access, uint32_t nranks) {
  return access.form == ListForm::Whole ? nranks : 1;
}

}  // namespace niccolite::executor
