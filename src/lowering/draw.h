// An access plan as text for people: what schedule::draw_text() says of each instruction, and how
// the bytes go. Pure.
#pragma once

#include <string>

#include "lowering/plan.h"

namespace niccolite::lowering {

/// A paragraph for each worker, with a line for each step:
///
///   rank 0, channel 0, worker 1: bulk copies, dynamic tiles
///     take advertisement  rank 1
///     move                input -> rank 1 (put)
///     announce            rank 1
std::string draw_text(const AccessPlan& plan);

}  // namespace niccolite::lowering
