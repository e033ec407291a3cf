// How a direct algorithm's instructions are spread over lanes.
//
//   by phase         one lane pushes to all peers in turn, one folds, one gathers, each with many
//                    warps on one chunk. Rounds overlap, but within a phase each peer waits until
//                    the chunks of the peers before it are stored and published
//   by instruction   a lane for each: an instruction waits for its own data and nothing else. The
//                    name of such an algorithm ends in "_lanes"
#pragma once

#include <array>
#include <optional>

#include "algorithms/options.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

/// With a lane for each instruction there are up to 2n - 1. Each takes a warp at least, and a CTA
/// has 16.
inline constexpr int kMaxLanesRanks = 8;

enum class Lanes : unsigned char { ByPhase, ByInstruction };

/// The most ranks that an algorithm with such lanes is for.
constexpr int max_ranks_of(Lanes lanes) {
  return lanes == Lanes::ByPhase ? kMaxDirectRanks : kMaxLanesRanks;
}

/// Gives out the lanes of one rank. `builder` and `options` must outlive it.
class LaneSpreader {
 public:
  LaneSpreader(schedule::Builder& builder, int rank, int nranks, Lanes lanes,
               const Options& options)
      : builder_(builder), rank_(rank), nranks_(nranks), lanes_(lanes), options_(options) {}

  /// The lane for the next instruction of `phase`: kPushLane, kFoldLane or kGatherLane.
  schedule::LaneBuilder of(size_t phase) {
    // One fold takes as many chunks as all pushes send, or all gathers store.
    if (lanes_ == Lanes::ByInstruction)
      return builder_.add_lane(rank_, /*channel=*/0, phase == kFoldLane ? nranks_ - 1 : 1);
    std::optional<schedule::LaneBuilder>& lane = of_phase_[phase];
    if (!lane) lane.emplace(builder_.add_lane(rank_, /*channel=*/0, options_.weights[phase]));
    return *lane;
  }

 private:
  schedule::Builder& builder_;
  const int rank_;
  const int nranks_;
  const Lanes lanes_;
  const Options& options_;
  std::array<std::optional<schedule::LaneBuilder>, 3> of_phase_{};
};

}  // namespace niccolite::algorithms
