// A launch as the phase kernels (phase_kernel.cuh) want it. Pure functions.
#pragma once

#include "executor/cuda/patterns/pattern_params.h"

namespace niccolite::executor::cuda {

/// Goes the rank of a launch of one work through phases (lowering/phases.h) that the kernel knows?
/// One reduces, with at most kMostPhasePeers peers in each. Not so reductions that scale their
/// input, large ones whose result goes to nobody else, and those over connections with too few
/// slots for rounds that overlap.
bool goes_through_phases(const Launch& launch, bool reduces);
/// The parameters of a launch that does. `threads`: of a CTA, where the launch says how many.
PatternParams phase_params(const Launch& launch, uint32_t threads);

}  // namespace niccolite::executor::cuda
