// PreparedLaunch: a Launch compiled for one device, to be queued again and again. Queuing it is one
// driver call and allocates nothing; only the user's buffers may change in between.
// Thread safety: one thread at a time. The PreparedLaunch must live until its queued launches,
// except in graphs, are done. The connections, buffers and control words that the Launch names must
// live as long, and in a graph as long as the graph. The program is copied.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/buffer_needs.h"
#include "executor/cuda/launch/device_params.h"
#include "executor/cuda/launch/kernel_launch.h"
#include "executor/protocol/relay.h"
#include "gpu/cuda/machine.h"
#include "gpu/streams.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::executor::cuda {

class PreparedLaunch {
 public:
  /// Compiles `launch` for `device` of the CUDA machine `machine`, where the kernels are loaded
  /// (kernels.h: load()). Errors: as prepare() and find_kernel(); CudaError for want of memory when
  /// the program is too large for the parameters.
  static Result<PreparedLaunch> create(gpu::Machine& machine, int device, const Launch& launch);

  /// Sets other buffers for the launches to come, for all works of the program. Errors: as
  /// BufferNeeds::check(); the buffers set before then stay.
  Status set_buffers(std::span<const Buffers> buffers);
  /// Queues the operation on `stream` of the device, which may be capturing.
  /// `begun`: an event's handle, recorded when all its CTAs have begun; null: none. Not where the
  /// stream captures.
  /// `number`: Launch::number. `after_last`: not Ended only where the last work on the stream is a
  /// kernel of a PreparedLaunch, for Early of one that is_short(). Kernels that cannot begin before
  /// it has ended wait all the same.
  Status launch(gpu::StreamHandle stream, void* begun = nullptr, uint64_t number = 0,
                AfterLast after_last = AfterLast::Ended);
  /// Is it a short collective, that the next launch need not wait for to begin?
  bool is_short() const { return begins_early(version_.kernel->kernel); }
  /// Does it have device memory, which must not end before the work does?
  bool has_memory() const {
    return version_.params != nullptr || threads_version_.params != nullptr ||
           slots_version_.params != nullptr || launch_.has_value();
  }

 private:
  /// One form of the kernel that may be queued.
  struct Version {
    std::unique_ptr<KernelLaunch> kernel;
    gpu::cuda::CuFunction function = nullptr;
    DeviceParams params;  // null when the program fits into the parameters
  };

  PreparedLaunch() = default;
  Result<Version> create_version(const Launch& launch, Staging staging,
                                 Expected expected = Expected::Direct);
  Result<Version> create_version(KernelLaunch kernel);
  /// The version that suits the buffers, which knows which of them peers can see.
  Result<Version*> choose_version();
  /// The version for chunks that need no slots; null: there are none.
  Result<Version*> find_version_with_places();
  void find_advertisements(KernelLaunch& kernel);
  Status keep_in_graph(const DeviceParams& params, gpu::StreamHandle stream);

  gpu::cuda::CudaMachine* machine_ = nullptr;
  int device_ = -1;
  BufferNeeds needs_;
  observe::KernelMarks marks_;
  gpu::cuda::CuContext context_ = nullptr;
  bool has_sync_domains_ = false;
  bool may_run_beside_ = false;  // dependent_launch.cuh
  bool may_begin_early_ = false;
  uint32_t most_shared_ = 0;         // bytes of shared memory that a CTA may have
  std::vector<relay::Bell*> bells_;  // of proxies that have to carry the kernel's sends
  std::vector<Buffers> buffers_;     // of the last set_buffers()
  Version version_;
  Version threads_version_;  // when version_ only moves bytes and has staged copies: for buffers
                             // that do not suit those
  Version slots_version_;    // when version_ reduces and may go direct: for buffers that cannot

  // Where the network may reach buffers of the user (places.h): a version for each of the first few
  // sets of chunks that need no slots, which differ by how the buffers overlap. Kernels that are
  // queued use their tables, so that none ends before this.
  struct VersionWithPlaces {
    Places places;
    Version version;
  };
  std::optional<Launch> launch_;  // whose buffers are the last ones; none: it never does
  std::vector<std::unique_ptr<VersionWithPlaces>> with_places_;
};

}  // namespace niccolite::executor::cuda
