// PreparedLaunch: a Launch compiled for one device, to be queued again and again. Queuing it is one
// driver call and allocates nothing; only the user's buffers may change in between.
// Thread safety: one thread at a time. The connections, buffers and control words that the Launch
// names must live until the work is done, in a graph as long as the graph; the program is copied.
#pragma once

#include <memory>
#include <span>

#include "executor/cuda/image.h"
#include "gpu/cuda/machine.h"
#include "gpu/machine.h"

namespace niccolite::executor::cuda {

class PreparedLaunch {
 public:
  /// `machine` is a CUDA machine; the kernels are loaded into `device` (kernels.h: load()).
  /// Errors: those of prepare() and of find_kernel(); CudaError for want of memory when the program
  /// is too large for the parameters.
  static Result<PreparedLaunch> create(gpu::Machine& machine, int device, const Launch& launch);

  /// Other buffers for the launches to come: those of all works of the program.
  void set_buffers(std::span<const Buffers> buffers);
  /// Queues the operation on `stream` of the device, which may be capturing.
  Status launch(gpu::StreamHandle stream);

 private:
  /// What is queued.
  struct Version {
    std::unique_ptr<KernelLaunch> kernel;
    gpu::cuda::CuFunction function = nullptr;
    std::shared_ptr<gpu::Memory> image;  // null when the program fits into the parameters
  };

  PreparedLaunch() = default;
  Result<Version> create_version(const Launch& launch, BulkCopies bulk_copies);
  Status keep_image(const std::shared_ptr<gpu::Memory>& image, gpu::StreamHandle stream);

  gpu::cuda::CudaMachine* machine_ = nullptr;
  int device_ = -1;
  gpu::cuda::CuContext context_ = nullptr;
  bool has_sync_domains_ = false;
  bool has_bulk_copies_ = false;
  Version version_;
  Version threads_version_;  // when version_ only moves bytes and has bulk lanes: for buffers that
                             // do not suit those
};

/// Prepares and queues a Launch that will not come again.
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const Launch& launch);

}  // namespace niccolite::executor::cuda
