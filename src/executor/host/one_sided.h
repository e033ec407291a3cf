// One-sided operations on virtual GPUs. Thread safety: any thread. Objects that an operation names
// live until the stream has passed them, or the graph that holds them is gone.
#pragma once

#include "executor/one_sided.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const Put& put);
Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const RelayedPut& put);
Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              SignalWait wait);

}  // namespace niccolite::executor::host
