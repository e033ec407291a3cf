// Tuning: one communicator's tuner plug-in, which rank 0 has (planner/plugins/tuner.h): other ranks
// ask rank 0 the first time that they plan an operation, so that all carry it out alike. Thread
// safety: any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/wire.h"
#include "planner/plugins/tuner.h"

namespace niccolite::operations {

class Tuning {
 public:
  /// `tuner`: of rank 0; null, there too, where the cost model is all there is. `ask_first`:
  /// returns rank 0's answer(), for other ranks; may wait.
  Tuning(const planner::Settings& settings, std::shared_ptr<planner::Tuner> tuner,
         std::function<Result<Bytes>(std::span<const std::byte> question)> ask_first)
      : settings_(settings), tuner_(std::move(tuner)), ask_first_(std::move(ask_first)) {}

  /// See planner::Planner::decide_by(). `settings` are the communicator's, except for the buffers
  /// that they are planned for.
  Result<planner::Choice> choose(const planner::Settings& settings, planner::Collective collective,
                                 size_t bytes, int most_channels);

  /// Answers a question to rank 0.
  Result<Bytes> answer(std::span<const std::byte> question);

 private:
  Result<planner::Choice> choose_here(const planner::Settings& settings,
                                      planner::Collective collective, size_t bytes,
                                      int most_channels);

  const planner::Settings settings_;
  const std::shared_ptr<planner::Tuner> tuner_;
  const std::function<Result<Bytes>(std::span<const std::byte>)> ask_first_;  // null: rank 0
};

}  // namespace niccolite::operations
