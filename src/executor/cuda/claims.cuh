// Claims: the CTAs of a launch share what one lane of their program sends, and whoever is free
// takes the next unit of it.
//
// A channel's part of a block is fixed (partition.h), and so is the time that its CTA would need,
// if the chip were fair. It is not: of 16 CTAs that store to a peer with all that they have, some
// are done when others are half way, and then the link has nothing to do (docs/design/0014). What
// *lands* needs no order: the receiver's kernel ends when all of its channels have been told that
// all is stored, whoever stored what. So each CTA of the sender takes units until there are none,
// and then announces all steps of its own channel.
//
//   channel 0 | u0 | u3 | u6 |     unit u belongs to channel u % channels; the first of each
//   channel 1 | u1 | u4 | u7 |     channel is its CTA's; the others go to whoever claims
//   channel 2 | u2 | u5 | u8 |     them from a counter in the sender's memory
//
// The counter (ControlBlock::claims, of the lane's first connection, first channel) is 0 between
// operations: each CTA claims exactly one unit too many, and whoever claims the last one resets it.
// (Not if an operation is aborted before all its CTAs have taken an offer. An operation queued
// behind it may then find too few units; it cannot succeed, since the channels that were aborted
// are closed, and stores nowhere but where it was offered to.)
//
// When: all that the lane sends has an offer (offers.cuh) and stays where it lands
// (PortTask::kStays), every channel has data, and there are at least two units for each.
// All CTAs come to the same decision, since offers are the same for all channels of a block.
#pragma once

#include "executor/cuda/bulk_stages.cuh"

namespace niccolite::executor::cuda {

/// Units of a lane are as long as what it has loaded before it knows whether it may claim any.
inline constexpr uint32_t kPiecesOfUnit = 4;
static_assert(kPiecesOfUnit <= BulkStages::kAhead);

/// Draws the next number, of `all` that are drawn in an operation. Who draws the last one resets
/// the counter. Relaxed: nothing but the number is passed on.
__device__ __forceinline__ uint32_t draw_claim(uint64_t* counter, uint32_t all) {
  const auto claimed = static_cast<uint32_t>(ptx::fetch_add_relaxed(counter, 1));
  if (claimed + 1 == all) ptx::store_relaxed_system(counter, uint64_t{0});
  return claimed;
}

/// A part of a block, in packs from the start of the block.
struct Span {
  uint32_t at;
  uint32_t packs;
};

/// The units of one lane's block. All lengths in packs, so that 32 bits hold them.
class Claims {
 public:
  /// `block`: whole packs of data; `stride`: of a channel's part.
  __device__ __forceinline__ Claims(uint64_t* counter, uint32_t channels, uint32_t channel,
                                    uint32_t block, uint32_t stride, uint32_t unit)
      : counter_(counter),
        channels_(channels),
        units_(channels * ((stride + unit - 1) / unit)),
        unit_(unit),
        stride_(stride),
        block_(block),
        next_(channel) {}

  /// Is there enough to share, and can it be counted?
  __device__ __forceinline__ static bool are_worth_it(uint32_t channels, uint64_t block,
                                                      uint64_t stride, uint32_t unit) {
    return channels > 1 && stride >= 2 * uint64_t{unit} && block > (channels - 1) * stride &&
           channels * stride <= kMostPacks;
  }

  /// The CTA's next unit, which may be empty; false when there is none. The first time, the first
  /// one of its channel.
  __device__ __forceinline__ bool take(Span& unit) {
    if (next_ >= units_) return false;
    const uint32_t in_channel = next_ / channels_ * unit_;
    unit.at = next_ % channels_ * stride_ + in_channel;
    const uint32_t of_channel = stride_ - in_channel < unit_ ? stride_ - in_channel : unit_;
    const uint32_t left = unit.at < block_ ? block_ - unit.at : 0;
    unit.packs = left < of_channel ? left : of_channel;
    claim();
    return true;
  }

 private:
  static constexpr uint64_t kMostPacks = uint64_t{1} << 31;

  // One unit ahead, so that the counter's latency is hidden. All claims: those of the units that
  // are not first ones, and one for each CTA.
  __device__ __forceinline__ void claim() { next_ = channels_ + draw_claim(counter_, units_); }

  uint64_t* const counter_;
  const uint32_t channels_;
  const uint32_t units_;
  const uint32_t unit_;
  const uint32_t stride_;
  const uint32_t block_;
  uint32_t next_;
};

}  // namespace niccolite::executor::cuda
