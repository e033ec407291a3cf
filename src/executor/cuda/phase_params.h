// A launch as the phase kernels (phase_kernel.cuh) want it. Pure functions.
#pragma once

#include <optional>

#include "executor/cuda/phase_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// Of a launch by LL128, in one pattern channel, whose rank goes through phases
/// (lowering/phases.h), of which one reduces, with at most kMostPhasePeers peers in each. None for
/// others, for reductions that scale their input, for large ones whose result goes to nobody
/// else, and where the connections have too few slots for rounds that overlap.
std::optional<PhaseParams> phase_params(const Launch& launch);

/// Threads of a CTA that have a line to move at once: a warp for each four lines and peer.
uint32_t phase_threads(const Launch& launch, const PhaseParams& params);

}  // namespace niccolite::executor::cuda
