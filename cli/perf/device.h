// The kernels of --device, of a shared library beside the command, and the device communicators
// that they use. Thread safety: DeviceComm belongs to its rank's thread; all else is immutable.
#pragma once

#include "base/status.h"
#include "cli/perf/kernels/kernels.h"
#include "cli/perf/library.h"
#include "cli/perf/options.h"
#include "gpu/machine.h"

namespace niccolite::perf {

/// Opens the kernels for GPUs of this kind. InvalidUsage: the command was built without them.
Result<const KernelLibrary*> open_kernels(gpu::Kind kind);

/// A device communicator of one rank. Does not move, since its creation may end with a group.
class DeviceComm {
 public:
  DeviceComm() = default;
  DeviceComm(const DeviceComm&) = delete;

  /// For kernels that go this way. It is there when the group ends.
  Status create(const Communicator& comm, const KernelLibrary& kernels, DeviceWay way);
  /// Does it reach all ranks as `way` says?
  Status check(DeviceWay way) const;
  Status destroy();

  const ncclDevComm_t& get() const { return made_; }
  uint32_t epochs() const { return epochs_; }

 private:
  const Communicator* comm_ = nullptr;
  ncclDevResourceRequirements_t state_ = {};
  ncclDevCommRequirements_t needs_ = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t made_ = {};
  uint32_t epochs_ = 0;
};

}  // namespace niccolite::perf
