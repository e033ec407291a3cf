// How a direct algorithm's instructions are spread over workers.
//
//   by phase         one worker pushes to all peers in turn, one reduces, one gathers, each with
//                    many warps on one chunk. Rounds overlap, but within a phase each peer waits
//                    until the chunks of the peers before it are stored and published
//   by instruction   a worker for each: an instruction waits for its own data and nothing else. The
//                    name of such an algorithm ends in "_workers"
#pragma once

#include <array>
#include <optional>

#include "algorithms/options.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

/// With a worker for each instruction there are up to 2n - 1. Each takes a warp at least, and a CTA
/// has 16.
inline constexpr int kMaxWorkersRanks = 8;

enum class Workers : unsigned char { ByPhase, ByInstruction };

/// The most ranks that an algorithm with such workers is for.
constexpr int max_ranks_of(Workers workers) {
  return workers == Workers::ByPhase ? kMaxDirectRanks : kMaxWorkersRanks;
}

/// Gives out the workers of one rank. `builder` and `options` must outlive it.
class WorkerSpreader {
 public:
  WorkerSpreader(schedule::Builder& builder, int rank, int nranks, Workers workers,
                 const Options& options)
      : builder_(builder), rank_(rank), nranks_(nranks), workers_(workers), options_(options) {}

  /// The worker for the next instruction of `phase`: kPushWorker, kReductionWorker or
  /// kGatherWorker.
  schedule::WorkerBuilder of(size_t phase) {
    // One reduction takes as many chunks as all pushes send, or all gathers store.
    if (workers_ == Workers::ByInstruction)
      return builder_.add_worker(rank_, /*channel=*/0, phase == kReductionWorker ? nranks_ - 1 : 1);
    std::optional<schedule::WorkerBuilder>& worker = of_phase_[phase];
    if (!worker) worker.emplace(builder_.add_worker(rank_, /*channel=*/0, options_.weights[phase]));
    return *worker;
  }

 private:
  schedule::Builder& builder_;
  const int rank_;
  const int nranks_;
  const Workers workers_;
  const Options& options_;
  std::array<std::optional<schedule::WorkerBuilder>, 3> of_phase_{};
};

}  // namespace niccolite::algorithms
