// The virtual driver's Machine: Runtime in the terms of gpu/machine.h. Used by vcuda's entry point
// only.
#pragma once

#include "gpu/virtual/tasks.h"

namespace niccolite::gpu::virtual_ {

/// The process's machine of virtual GPUs; null when `interface_version` is not ours, or
/// NICCOLITE_DEVICES is malformed.
VirtualMachine* open(int interface_version);

}  // namespace niccolite::gpu::virtual_
