// Fits what a class of machines does, whatever the algorithm, to the times of all algorithms.
#pragma once

#include <array>

#include "cli/tune/points.h"
#include "planner/tuning.h"

namespace niccolite::tune {

using PropertiesByProtocol = std::array<planner::Properties, executor::kProtocols>;

/// By protocol, the properties by which derived prices (planner/price.h) have the least weighted
/// squares of log(predicted / measured). What the measurements say nothing about stays as `known`
/// has it: protocols that were not measured, the network inside machines, links inside machines
/// over the network, links of two ranks where more were measured.
PropertiesByProtocol fit_properties(const Measurements& measurements,
                                    const PropertiesByProtocol& known);

}  // namespace niccolite::tune
