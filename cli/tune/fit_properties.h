// Fits the properties of a class of machines, whatever the algorithm, to the times of all
// algorithms.
#pragma once

#include "cli/tune/check.h"

namespace niccolite::tune {

/// By protocol, the properties by which derived prices (planner/prices/price.h) have the least
/// weighted squares of log(predicted / measured). What the measurements say nothing about stays as
/// `known` has it: protocols that were not measured, the network inside machines, links inside
/// machines over the network, links of two ranks where more were measured. Where the prices of all
/// protocols together then choose wrong among candidates, those times count more, and the
/// properties are fitted again (passes.h).
PropertiesByProtocol fit_properties(const Measurements& measurements,
                                    const PropertiesByProtocol& known,
                                    const Candidate& is_candidate);

}  // namespace niccolite::tune
