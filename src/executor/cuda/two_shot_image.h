// A launch as the two-shot kernels (two_shot.cuh) want it. Pure functions.
#pragma once

#include <optional>

#include "executor/cuda/two_shot_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// None unless the program is the LL128 two-shot for at most kMostTwoShotPeers peers: push every
/// block to its owner, fold the own one and send it to all, gather the others (in any lanes).
std::optional<TwoShotImage> two_shot_image(const Launch& launch);

/// Threads of a CTA that have a line to push at once: a warp for each four lines and peer.
uint32_t two_shot_threads(const Launch& launch, const TwoShotImage& image);

}  // namespace niccolite::executor::cuda
