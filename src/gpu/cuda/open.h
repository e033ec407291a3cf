// The machine of the GPUs that the CUDA driver shows.
#pragma once

#include "base/status.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::gpu::cuda {

/// Returns the machine, always the same pointer, which nobody owns. Errors: CudaError when there is
/// no driver, it is too old, or it finds no device. Thread safety: any thread.
Result<Machine*> open();

}  // namespace niccolite::gpu::cuda
