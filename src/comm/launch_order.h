// LaunchOrder: makes live operations of communicators that share a device begin in the order in
// which this process's host launches them, whatever streams they are on (NCCL's implicit launch
// order, docs/design/0047-launch-order.md). An operation waits until the one that another
// communicator launched before it on that device has begun, not until it has ended: where both fit
// the device they run side by side. A communicator that is alone on its device has one atomic load
// a launch. Thread safety: before() by one thread at a time for a communicator.
#pragma once

#include <memory>

#include "base/status.h"
#include "gpu/machine.h"

namespace niccolite::comm {

class Launcher;

class LaunchOrder {
 public:
  /// Null where the machine cannot tell that an operation has begun: then nothing is ordered.
  static Result<std::unique_ptr<LaunchOrder>> join(gpu::Machine& machine, int device);
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;

  /// Before a live operation is launched by `launcher` on `stream`.
  Status before(Launcher& launcher, gpu::StreamHandle stream);

 private:
  struct Device;  // what its communicators share
  LaunchOrder(gpu::Machine& machine, int device, std::shared_ptr<Device> shared)
      : machine_(machine), device_(device), shared_(std::move(shared)) {}

  gpu::Machine& machine_;
  const int device_;
  const std::shared_ptr<Device> shared_;
  gpu::Event begun_;  // CUDA: recorded by each of its operations as it begins
};

}  // namespace niccolite::comm
