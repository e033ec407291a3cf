// Memory that the library allocates for users (ncclMemAlloc): shareable, so that other processes
// can map it and it can be part of windows. Thread safety: any thread.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::registry {

/// `bytes` > 0 of zeroed memory of `device`.
Result<void*> allocate_user_memory(gpu::Machine& machine, int device, size_t bytes);

/// Gives memory of allocate_user_memory() back when the work queued on its device is done, as
/// cudaFree does. CudaError: it is none, or was given back before.
Status free_user_memory(gpu::Machine& machine, void* pointer);

}  // namespace niccolite::registry
