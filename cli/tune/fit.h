// Fits the constants of one variant to measured times.
#pragma once

#include <span>

#include "cli/tune/points.h"

namespace niccolite::tune {

struct Sample {
  Point point;
  double weight = 1;
};

/// The constants with the least weighted squares of log(predicted / measured), with outliers of
/// more than a tenth counting less. `known` is where the search begins, and what remains of
/// constants that `samples` say nothing about. Levenberg and Marquardt's method over the logarithms
/// of the constants, from several starts.
planner::Cost fit(gpu::Kind machine, const planner::Cost& known, std::span<const Sample> samples);

/// Fits every variant that `points` has, and keeps the lines of `known` for all others. Variants
/// count the more at a size, the nearer they are to the fastest there: a model need not be right
/// about what nobody would choose.
std::vector<planner::CostLine> fit_all(const Measurements& measurements,
                                       std::span<const planner::CostLine> known);

}  // namespace niccolite::tune
