// The file that `niccolite tune` writes, that NICCOLITE_TUNING names, and that tuning/ holds.
#pragma once

#include <span>
#include <string>

#include "cli/tune/check.h"
#include "cli/tune/points.h"
#include "planner/prices/tuning.h"

namespace niccolite::tune {

/// As planner::parse_tuning() reads it; numbers have four digits.
std::string text_of(const planner::Tuning& tuning);

/// `known` with `lines` instead of its own where both have a variant, for the machines that were
/// measured.
planner::Tuning tuning_from(const Measurements& measurements, const planner::Tuning& known,
                            std::span<const planner::CostLine> lines);

/// The file at `path`. Errors: InvalidUsage with line and field.
Result<planner::Tuning> read_tuning(const std::string& path);

/// Returns the tuning for the measured machines, of this build or of NICCOLITE_TUNING.
const planner::Tuning& tuning_in_force(const Measurements& measurements);

/// Variants whose channels and whose chunk the slots of a tuning have, for the ranks of the point.
Candidate within_slots(const Measurements& measurements, const planner::Tuning& tuning);

}  // namespace niccolite::tune
