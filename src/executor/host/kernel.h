// The host executor's entry points: a Launch becomes a kernel of a virtual GPU.
// Thread safety: any thread. The kernel keeps the launch's program; buffers, connections and
// control words are the caller's, and live until the stream has passed the kernel or the graph that
// holds it is gone.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "executor/launch.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

class Plan;

/// InternalError when the launch is malformed: see Plan::create.
Result<std::shared_ptr<gpu::virtual_::Kernel>> make_kernel(Launch launch);

/// A launch that has been checked, to be queued any number of times. Thread safety: immutable.
class PreparedLaunch {
 public:
  /// Whatever buffers it has. Errors as make_kernel().
  static Result<PreparedLaunch> create(Launch launch);
  /// Queues the launch on `stream` of `device` with these buffers, by work, or adds it to the graph
  /// the stream is capturing into. `number`: Launch::number of this one.
  /// `order`: of a launch that no stream captures.
  Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
                std::span<const Buffers> buffers, uint64_t number = 0, StartOrder order = {}) const;

 private:
  explicit PreparedLaunch(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const Plan> plan_;
};

}  // namespace niccolite::executor::host
