// A launch as the phase kernels (phase_kernel.cuh) want it. Pure functions.
#pragma once

#include <optional>

#include "executor/cuda/patterns/pattern_params.h"

namespace niccolite::executor::cuda {

/// Of a launch by LL128, in one pattern channel, whose rank goes through phases
/// (lowering/phases.h), of which one reduces, with at most kMostPhasePeers peers in each. None for
/// others, for reductions that scale their input, for large ones whose result goes to nobody
/// else, and where the connections have too few slots for rounds that overlap.
/// `threads`: of a CTA, where the launch says how many.
std::optional<PatternParams> phase_params(const Launch& launch, uint32_t threads);

}  // namespace niccolite::executor::cuda
