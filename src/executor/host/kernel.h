// The host executor's entry points: a Launch becomes a kernel of a virtual GPU.
// Thread safety: any thread. The kernel keeps the launch's program; buffers, connections and
// control words are the caller's, and live until the stream has passed the kernel or the graph that
// holds it is gone.
#pragma once

#include <memory>

#include "base/status.h"
#include "executor/launch.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

/// InternalError when the launch is malformed: see Plan::create.
Result<std::shared_ptr<gpu::virtual_::Kernel>> make_kernel(Launch launch);

/// Queues the launch on `stream` of `device`, or adds it to the graph the stream is capturing into.
Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              Launch launch);

}  // namespace niccolite::executor::host
