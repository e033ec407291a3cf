// The fatbins of a build without nvcc.
#include "executor/cuda/launch/fatbins.h"

namespace niccolite::executor::cuda {

std::span<const Fatbin> fatbins() { return {}; }

}  // namespace niccolite::executor::cuda
