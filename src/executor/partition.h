// Partition: which elements of a block each channel handles in each round. Pure arithmetic, for
// host and device.
//
//   buffer   | block 0 | block 1 | ... |            block b starts at b * block_stride
//   block    | channel 0 | channel 1 | ... |        channel c starts at c * channel_stride inside
//   its block channel  | round 0 | round 1 | ... |  round r starts at r * chunk inside its channel
//
// Blocks that are parts of one buffer have strides that are multiples of 16 bytes, so that every
// chunk has the alignment of its buffer; the last ones may be cut short or be empty. Blocks that
// lie side by side (an all-gather's) have the user's count for a stride, which may be any number of
// elements. Channels and chunks are multiples of 16 bytes in both, and of a line of memory unless
// they are small: copies that begin within lines move them in parts, which over links is slower by
// a third. All ranks compute the same partition from the same arguments.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor {

struct Range {
  uint64_t offset;  // elements from the start of the buffer
  uint64_t count;   // elements; 0 when the chunk is empty
};

struct Partition {
  uint64_t count = 0;           // elements of the buffer that the blocks cut up
  uint64_t block_stride = 0;    // elements
  uint64_t channel_stride = 0;  // elements
  uint32_t chunk = 0;           // elements
  uint32_t channels = 0;
  uint32_t rounds = 0;

  /// Elements of the block from the start of its channel `channel` on, including later channels.
  constexpr uint64_t count_from(uint32_t block, uint32_t channel) const {
    const uint64_t block_start = uint64_t{block} * block_stride;
    const uint64_t in_block = uint64_t{channel} * channel_stride;
    if (block_start >= count) return 0;
    const uint64_t block_count =
        count - block_start < block_stride ? count - block_start : block_stride;
    return in_block < block_count ? block_count - in_block : 0;
  }

  /// Returns the start of the chunk, from the start of its block. It may lie beyond the block's
  /// end.
  constexpr uint64_t start_of(uint32_t channel, uint32_t round) const {
    return uint64_t{channel} * channel_stride + uint64_t{round} * chunk;
  }

  constexpr Range range(uint32_t block, uint32_t channel, uint32_t round) const {
    const uint64_t in_block = start_of(channel, round);
    const uint64_t block_start = uint64_t{block} * block_stride;
    if (block_start >= count) return {0, 0};
    const uint64_t block_count =
        count - block_start < block_stride ? count - block_start : block_stride;
    if (in_block >= block_count) return {0, 0};
    const uint64_t left = block_count - in_block;
    return {block_start + in_block, left < chunk ? left : chunk};
  }
};

/// Do all blocks begin and end at multiples of `unit` bytes, if the buffer begins at one?
constexpr bool is_of_units(const Partition& partition, uint64_t element_bytes, uint64_t unit) {
  return partition.block_stride * element_bytes % unit == 0 &&
         partition.count * element_bytes % unit == 0;
}

constexpr uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
constexpr uint64_t round_up(uint64_t a, uint64_t to) { return divide_up(a, to) * to; }

/// Bytes that memory and links move as one.
inline constexpr uint32_t kLine = 128;

/// Elements that parts of about `part` elements are to be multiples of.
constexpr uint64_t grain_of(uint64_t part, uint32_t element_bytes) {
  constexpr uint64_t kPack = 16;
  constexpr uint64_t kLeastLines = 16;  // of a part that can spare some bytes
  return (part * element_bytes >= kLeastLines * kLine ? kLine : kPack) / element_bytes;
}

/// The sizes by which data is cut; sizes in bytes, counts in elements.
struct Cut {
  uint32_t max_channels = 1;
  uint64_t slot_data_bytes = 0;     // the most that a chunk may have
  uint64_t min_channel_bytes = 16;  // fewer channels are used when they would get less of a block
};

/// Channels and rounds for blocks of `block_stride` elements; the blocks are the caller's to fill
/// in.
constexpr Partition cut_block(uint64_t block_stride, uint32_t element_bytes, const Cut& cut) {
  const uint64_t grain = 16 / element_bytes;
  Partition p;
  p.block_stride = block_stride;
  uint64_t least = round_up(divide_up(cut.min_channel_bytes, element_bytes), grain);
  if (least < grain) least = grain;
  uint64_t share = divide_up(block_stride, cut.max_channels);
  share = round_up(share, grain_of(share, element_bytes));
  if (share < least) share = least < block_stride ? least : round_up(block_stride, grain);
  if (share == 0) share = grain;
  const uint64_t most = cut.slot_data_bytes / 16 * grain;
  const uint64_t rounds = divide_up(share, most);
  // Equal rounds: a short last round would leave the pipeline with one chunk that costs a full
  // latency.
  const uint64_t turn = divide_up(share, rounds == 0 ? 1 : rounds);
  p.chunk = static_cast<uint32_t>(round_up(turn, grain_of(turn, element_bytes)));
  if (p.chunk > most) p.chunk = static_cast<uint32_t>(most);
  p.rounds = static_cast<uint32_t>(divide_up(share, p.chunk));
  p.channel_stride = uint64_t{p.rounds} * p.chunk;
  p.channels = static_cast<uint32_t>(divide_up(block_stride, p.channel_stride));
  if (p.channels == 0) p.channels = 1;
  return p;
}

/// `count` elements of one buffer in `nblocks` equal parts.
constexpr Partition make_partition(uint64_t count, uint32_t element_bytes, uint32_t nblocks,
                                   const Cut& cut) {
  const uint64_t part = divide_up(count, nblocks);
  Partition p = cut_block(round_up(part, grain_of(part, element_bytes)), element_bytes, cut);
  p.count = count;
  return p;
}

/// `nblocks` blocks of `count` elements each, side by side. A count of 0 (an empty message) gives
/// one channel and one round, of an empty chunk.
constexpr Partition make_block_partition(uint64_t count, uint32_t element_bytes, uint32_t nblocks,
                                         const Cut& cut) {
  Partition p = cut_block(count, element_bytes, cut);
  p.count = count * nblocks;
  return p;
}

}  // namespace niccolite::executor
