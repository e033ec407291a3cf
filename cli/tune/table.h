// The table of constants as C++: the source file that the library is built from.
#pragma once

#include <span>
#include <string>

#include "cli/tune/points.h"

namespace niccolite::tune {

/// The lines between the braces of src/planner/constants_*.cc.
std::string source_lines(std::span<const planner::CostLine> lines);

/// The whole of that file.
std::string source_file(const Measurements& measurements, std::span<const planner::CostLine> lines);

}  // namespace niccolite::tune
