// Fits the constants of one variant to measured times.
#pragma once

#include <span>
#include <vector>

#include "cli/tune/points.h"

namespace niccolite::tune {

struct Sample {
  Point point;
  double weight = 1;
};

/// All points. They weigh the more, the nearer their variants are to the fastest of the same work:
/// a model need not be right about variants that nobody would choose.
std::vector<Sample> weighed(const Measurements& measurements);

/// The constants with the least weighted squares of log(predicted / measured), with outliers of
/// more than a tenth counting less. `known` is where the search begins, and what remains of
/// constants that `samples` say nothing about. Levenberg and Marquardt's method over the logarithms
/// of the constants, from several starts.
planner::Cost fit(gpu::Kind machine, const planner::Cost& known, std::span<const Sample> samples);

}  // namespace niccolite::tune
