// The workers of a direct algorithm: one for each phase. One pushes to all peers in turn, one
// reduces, one gathers, each with many warps on one chunk. Rounds overlap, but within a phase each
// peer waits until the chunks of the peers before it are stored and published. (Lowering may give
// each instruction a worker of its own: lowering/spread.h.)
#pragma once

#include <array>
#include <optional>

#include "algorithms/options.h"
#include "schedule/builder.h"

namespace niccolite::algorithms {

/// The most ranks among which each instruction of a direct algorithm may have a worker of its own.
/// There are up to 2n - 1. Each takes a warp at least, and a CTA has 16.
inline constexpr int kMaxWorkersRanks = 8;
/// Algorithms that follow machines have up to 2n workers, where n ranks share a machine.
inline constexpr int kMaxWorkersOfMachine = 7;

/// Workers of one rank that come into being when first used. `builder` must outlive them.
class PhaseWorkers {
 public:
  static constexpr size_t kMostPhases = 5;
  using Weights = std::array<int, kMostPhases>;

  PhaseWorkers(schedule::Builder& builder, int rank)
      : PhaseWorkers(builder, rank, {1, 1, 1, 1, 1}) {}
  /// Phases are kPushWorker, kReductionWorker and kGatherWorker, with the caller's weights.
  PhaseWorkers(schedule::Builder& builder, int rank, const Options& options)
      : PhaseWorkers(builder, rank,
                     {options.weights[0], options.weights[1], options.weights[2], 1, 1}) {}

  schedule::WorkerBuilder& operator[](size_t phase) {
    std::optional<schedule::WorkerBuilder>& worker = workers_[phase];
    if (!worker) worker.emplace(builder_.add_worker(rank_, /*channel=*/0, weights_[phase]));
    return *worker;
  }

 private:
  PhaseWorkers(schedule::Builder& builder, int rank, const Weights& weights)
      : builder_(builder), rank_(rank), weights_(weights) {}

  schedule::Builder& builder_;
  const int rank_;
  const Weights weights_;
  std::array<std::optional<schedule::WorkerBuilder>, kMostPhases> workers_{};
};

}  // namespace niccolite::algorithms
