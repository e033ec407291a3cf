// Launcher: one planned operation bound to its connections, ready to be queued again and again;
// hides which executor runs it. Thread safety: one thread at a time.
#pragma once

#include <memory>

#include "executor/launch.h"
#include "gpu/machine.h"

namespace niccolite::comm {

class Launcher {
 public:
  virtual ~Launcher() = default;
  /// `launch` without its buffers.
  static Result<std::unique_ptr<Launcher>> create(gpu::Machine& machine, int device,
                                                  executor::Launch launch);
  /// Queues the operation on `stream`, or into the graph that `stream` captures.
  virtual Status run(const void* input, void* output, gpu::StreamHandle stream) = 0;
};

/// Makes the kernels of `device` ready to be launched; part of making a communicator, since the
/// first launch of a kernel that was not loaded waits for the device, which may be waiting for a
/// peer.
Status load_kernels(gpu::Machine& machine, int device);

}  // namespace niccolite::comm
