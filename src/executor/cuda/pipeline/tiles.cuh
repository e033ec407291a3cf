// Dynamic tiles: the CTAs of a launch share the data that one worker of their program moves, and a
// CTA that is free takes the next tile.
//
// A channel's part of a block is fixed (partition.h), and so is the time that its CTA would need,
// if the chip were fair. It is not: of 16 CTAs that store to a peer as fast as they can, some are
// done when others are half way, and then the link has nothing to do. Got data is there from the
// start, and puts of final data need no order: the receiver's kernel ends when all of its channels
// have been told that all is stored, by any CTA. So each taker goes on until there are
// no tiles, and its CTA then announces all steps of its own channel.
//
// The condition: the lowered plan says so (lowering/workers.h); every peer's buffer is advertised,
// which is equal for all channels of a block; every channel has data, and there is enough to share.
// All CTAs come to the same decision.
#pragma once

#include "executor/cuda/interpreter/cta.cuh"

namespace niccolite::executor::cuda {

/// Numbers the tiles of a launch: taker t of n has number t, all others are drawn. Used by one
/// thread of each taker.
///
/// The counter (ControlBlock::tile_counters, in this GPU's memory) is 0 between operations: for
/// each tile that is taken one number is drawn, and whoever has drawn the last one resets it. (Not
/// if an operation is aborted before all its CTAs have come so far. An operation queued behind it
/// may then find too few tiles; it cannot succeed, since the channels that were aborted are closed,
/// and stores nowhere but where it was advertised to.)
class TileCounter {
 public:
  __device__ __forceinline__ TileCounter(uint64_t* counter, uint32_t tiles, uint32_t takers,
                                         uint32_t taker)
      : counter_(counter), tiles_(tiles), takers_(takers), next_(taker) {}

  __device__ __forceinline__ uint32_t tiles() const { return tiles_; }

  /// The taker's next tile; tiles() or more: there is none.
  __device__ __forceinline__ uint32_t next() const { return next_; }
  /// Takes it, and draws another number: one tile ahead, and not looked at before, so that the
  /// counter's latency is hidden. Relaxed: nothing but the number is passed on.
  __device__ __forceinline__ void take() {
    next_ = takers_ + static_cast<uint32_t>(ptx::fetch_add_relaxed(counter_, 1));
  }
  /// When there is none.
  __device__ __forceinline__ void finish() const {
    if (next_ + 1 == takers_ + tiles_) ptx::store_relaxed_system(counter_, uint64_t{0});
  }

 private:
  uint64_t* const counter_;
  const uint32_t tiles_;
  const uint32_t takers_;
  uint32_t next_;
};

/// A part of a block, in vec16s from the start of the block.
struct Span {
  uint32_t at;
  uint32_t vec16s;
};

/// Tiles of a block whose first ones are where the channels begin, so that a CTA may load its own
/// before it knows whether the CTAs share them. All lengths in vec16s, so that 32 bits hold them.
///
///   channel 0 | t0 | t3 | t6 |
///   channel 1 | t1 | t4 | t7 |
///   channel 2 | t2 | t5 | t8 |
///
/// Within a channel they end where lines do, up to 7 vec16s later: bulk copies of anything but
/// whole lines take a fifth longer.
class ChannelTiles {
 public:
  /// `block`: whole vec16s of data; `stride`: of a channel's part; `into_line`: from a line to
  /// where the block begins.
  __device__ __forceinline__ ChannelTiles(uint64_t* counter, uint32_t channels, uint32_t channel,
                                          uint32_t block, uint32_t stride, uint32_t tile,
                                          uint32_t into_line)
      : numbers_(counter, channels * ((stride + tile - 1) / tile), channels, channel),
        channels_(channels),
        tile_(tile),
        stride_(stride),
        block_(block),
        into_line_(into_line) {}

  /// Is there enough to share, and can it be counted?
  __device__ __forceinline__ static bool are_worth_it(uint32_t channels, uint64_t block,
                                                      uint64_t stride, uint32_t tile) {
    return channels > 1 && stride >= 2 * uint64_t{tile} && block > (channels - 1) * stride &&
           channels * stride <= kMostVec16s;
  }

  /// The CTA's next tile, which may be empty; false when there is none. The first time, the first
  /// one of its channel.
  __device__ __forceinline__ bool take(Span& span) {
    const uint32_t number = numbers_.next();
    if (number >= numbers_.tiles()) return false;
    numbers_.take();
    const uint32_t in_channel = number / channels_ * tile_;
    const uint32_t channel = number % channels_ * stride_;
    const uint32_t end_of_channel = channel + stride_ < block_ ? channel + stride_ : block_;
    // Rounds a position in the channel up to a line, or to the channel's end.
    const auto place_of = [&](uint32_t vec16) {
      const uint32_t at = channel + vec16;
      const uint32_t line = at + (kLineVec16s - (into_line_ + at) % kLineVec16s) % kLineVec16s;
      return line < end_of_channel ? line : end_of_channel;
    };
    span.at = in_channel == 0 ? channel : place_of(in_channel);
    const uint32_t end =
        in_channel + tile_ < stride_ ? place_of(in_channel + tile_) : end_of_channel;
    span.vec16s = span.at < end ? end - span.at : 0;
    return true;
  }
  __device__ __forceinline__ void finish() const { numbers_.finish(); }

 private:
  static constexpr uint64_t kMostVec16s = uint64_t{1} << 31;
  static constexpr uint32_t kLineVec16s = kLine / kVec16;

  TileCounter numbers_;
  const uint32_t channels_;
  const uint32_t tile_;
  const uint32_t stride_;
  const uint32_t block_;
  const uint32_t into_line_;
};

}  // namespace niccolite::executor::cuda
