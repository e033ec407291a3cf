// From all measurements of a machine to its table of constants.
#pragma once

#include <span>
#include <vector>

#include "cli/tune/check.h"
#include "cli/tune/points.h"

namespace niccolite::tune {

/// A variant with fewer points keeps its known constants.
inline constexpr size_t kFewestPoints = 4;

/// How many variants have been measured, and how many of them are fitted.
struct Coverage {
  size_t measured = 0, fitted = 0;
};
Coverage coverage_of(const Measurements& measurements);

/// Fits every variant that has been measured, and keeps the lines of `known` for all others; it
/// also is where fits begin.
/// Variants count the more at a size, the nearer they are to the fastest there: a model need not be
/// right about variants that nobody would choose. Where it then chooses wrong (check.h), the times
/// of both variants count more, and they are fitted again; the table with the most right choices is
/// the result.
std::vector<planner::CostLine> calibrate(const Measurements& measurements,
                                         const planner::Tuning& known,
                                         const Candidate& is_candidate);

}  // namespace niccolite::tune
