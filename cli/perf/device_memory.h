// How much of a GPU's memory is free: asked of the driver that the process has loaded, CUDA's or
// the virtual one.
#pragma once

#include <cstdint>

#include "gpu/machine.h"

namespace niccolite::perf {

/// Free bytes of `device`, of all processes. Makes `device` current in the calling thread.
Result<int64_t> free_device_memory(gpu::Machine& machine, int device);

}  // namespace niccolite::perf
