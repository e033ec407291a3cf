// DynamicTiles: the CTAs of a launch share what one worker of their program sends, and whoever is
// free takes the next tile of it.
//
// A channel's part of a block is fixed (partition.h), and so is the time that its CTA would need,
// if the chip were fair. It is not: of 16 CTAs that store to a peer with all that they have, some
// are done when others are half way, and then the link has nothing to do (docs/design/0014). What
// *is put* needs no order: the receiver's kernel ends when all of its channels have been told that
// all is stored, whoever stored what. So each CTA of the sender takes tiles until there are none,
// and then announces all steps of its own channel.
//
//   channel 0 | u0 | u3 | u6 |     tile u belongs to channel u % channels; the first of each
//   channel 1 | u1 | u4 | u7 |     channel is its CTA's; the others go to whoever takes
//   channel 2 | u2 | u5 | u8 |     them from a counter in the sender's memory
//
// The counter (ControlBlock::tile_counters, of the worker's first connection, first channel) is 0
// between operations: each CTA takes exactly one tile too many, and whoever takes the last one
// resets it. (Not if an operation is aborted before all its CTAs have taken an advertisement. An
// operation queued behind it may then find too few tiles; it cannot succeed, since the channels
// that were aborted are closed, and stores nowhere but where it was advertised to.)
//
// When: all that the worker sends has an advertisement (advertisements.cuh) and stays where it is
// put (PortTask::kStays), every channel has data, and there are at least two tiles for each. All
// CTAs come to the same decision, since advertisements are the same for all channels of a block.
#pragma once

#include "executor/cuda/bulk_stages.cuh"

namespace niccolite::executor::cuda {

/// Tiles of a worker are as long as what it has loaded before it knows whether it may take any.
inline constexpr uint32_t kPiecesOfTile = 4;
static_assert(kPiecesOfTile <= BulkStages::kAhead);

/// Draws the next number, of `all` that are drawn in an operation. Who draws the last one resets
/// the counter. Relaxed: nothing but the number is passed on.
__device__ __forceinline__ uint32_t draw_tile(uint64_t* counter, uint32_t all) {
  const auto taken = static_cast<uint32_t>(ptx::fetch_add_relaxed(counter, 1));
  if (taken + 1 == all) ptx::store_relaxed_system(counter, uint64_t{0});
  return taken;
}

/// A part of a block, in vec16s from the start of the block.
struct Span {
  uint32_t at;
  uint32_t vec16s;
};

/// The tiles of one worker's block. All lengths in vec16s, so that 32 bits hold them.
class DynamicTiles {
 public:
  /// `block`: whole vec16s of data; `stride`: of a channel's part.
  __device__ __forceinline__ DynamicTiles(uint64_t* counter, uint32_t channels, uint32_t channel,
                                          uint32_t block, uint32_t stride, uint32_t tile)
      : counter_(counter),
        channels_(channels),
        tiles_(channels * ((stride + tile - 1) / tile)),
        tile_(tile),
        stride_(stride),
        block_(block),
        next_(channel) {}

  /// Is there enough to share, and can it be counted?
  __device__ __forceinline__ static bool are_worth_it(uint32_t channels, uint64_t block,
                                                      uint64_t stride, uint32_t tile) {
    return channels > 1 && stride >= 2 * uint64_t{tile} && block > (channels - 1) * stride &&
           channels * stride <= kMostVec16s;
  }

  /// The CTA's next tile, which may be empty; false when there is none. The first time, the first
  /// one of its channel.
  __device__ __forceinline__ bool take(Span& tile) {
    if (next_ >= tiles_) return false;
    const uint32_t in_channel = next_ / channels_ * tile_;
    tile.at = next_ % channels_ * stride_ + in_channel;
    const uint32_t of_channel = stride_ - in_channel < tile_ ? stride_ - in_channel : tile_;
    const uint32_t left = tile.at < block_ ? block_ - tile.at : 0;
    tile.vec16s = left < of_channel ? left : of_channel;
    take();
    return true;
  }

 private:
  static constexpr uint64_t kMostVec16s = uint64_t{1} << 31;

  // One tile ahead, so that the counter's latency is hidden. All draws: those of the tiles that
  // are not first ones, and one for each CTA.
  __device__ __forceinline__ void take() { next_ = channels_ + draw_tile(counter_, tiles_); }

  uint64_t* const counter_;
  const uint32_t channels_;
  const uint32_t tiles_;
  const uint32_t tile_;
  const uint32_t stride_;
  const uint32_t block_;
  uint32_t next_;
};

}  // namespace niccolite::executor::cuda
