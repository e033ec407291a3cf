#include "operations/launcher.h"

#include "executor/cuda/launch/kernels.h"
#include "executor/cuda/launch/prepared_launch.h"
#include "executor/host/kernel.h"

namespace niccolite::operations {
namespace {

Launcher::Advertisements advertisements_of(const executor::Launch& launch) {
  using Advertisements = Launcher::Advertisements;
  if (launch.list_access) return Advertisements::Made;
  const bool publishes = launch.protocol == executor::Protocol::Simple && !launch.is_list();
  Advertisements advertisements =
      publishes && !launch.ports.empty() ? Advertisements::Possible : Advertisements::None;
  for (size_t port = 0; port < launch.ports.size(); ++port) {
    if (advertises(launch, port)) return Advertisements::Made;
    const lowering::Way way = launch.ports[port].way;
    if (uses_slots(way)) continue;
    // A rank that takes places in windows compares them with its own.
    if (uses_team(way)) return Advertisements::Made;
    advertisements = Advertisements::Taken;
  }
  return advertisements;
}

class HostLauncher final : public Launcher {
 public:
  HostLauncher(gpu::virtual_::VirtualMachine& machine, int device,
               executor::host::PreparedLaunch launch)
      : machine_(machine), device_(device), launch_(std::move(launch)) {}

  Status queue_kernel(std::span<const executor::Buffers> buffers, LaunchOptions options) override {
    return launch_.launch(machine_, device_, options.stream, buffers, options.number,
                          std::move(options.order));
  }

 private:
  gpu::virtual_::VirtualMachine& machine_;
  const int device_;
  const executor::host::PreparedLaunch launch_;
};

class CudaLauncher final : public Launcher {
 public:
  explicit CudaLauncher(executor::cuda::PreparedLaunch launch) : launch_(std::move(launch)) {}

  Status queue_kernel(std::span<const executor::Buffers> buffers, LaunchOptions options) override {
    TRY(launch_.set_buffers(buffers));
    return launch_.launch(options.stream, options.begun, options.number, options.after_last);
  }
  bool has_memory() const override { return launch_.has_memory(); }
  bool is_short() const override { return launch_.is_short(); }

 private:
  executor::cuda::PreparedLaunch launch_;
};

}  // namespace

Result<std::unique_ptr<Launcher>> Launcher::create(gpu::Machine& machine, int device,
                                                   executor::Launch launch,
                                                   std::vector<void*> scratch) {
  const Advertisements advertisements = advertisements_of(launch);
  const auto ctas = static_cast<int>(executor::ctas_of(launch));
  std::unique_ptr<Launcher> launcher;
  switch (machine.kind()) {
    case gpu::Kind::Virtual: {
      auto prepared = TRY(executor::host::PreparedLaunch::create(std::move(launch)));
      launcher = std::make_unique<HostLauncher>(
          static_cast<gpu::virtual_::VirtualMachine&>(machine), device, std::move(prepared));
      break;
    }
    case gpu::Kind::Cuda: {
      auto prepared = TRY(executor::cuda::PreparedLaunch::create(machine, device, launch));
      launcher = std::make_unique<CudaLauncher>(std::move(prepared));
      break;
    }
  }
  launcher->advertisements_ = advertisements;
  launcher->ctas_ = ctas;
  launcher->scratch_ = std::move(scratch);
  return launcher;
}

Status Launcher::queue(std::span<const executor::Buffers> buffers, LaunchOptions options) {
  if (scratch_.empty()) return queue_kernel(buffers, std::move(options));
  buffers_.assign(buffers.begin(), buffers.end());
  for (size_t work = 0; work < buffers_.size() && work < scratch_.size(); ++work)
    buffers_[work].scratch = scratch_[work];
  return queue_kernel(buffers_, std::move(options));
}

Status load_kernels(gpu::Machine& machine, int device) {
  return machine.kind() == gpu::Kind::Cuda ? executor::cuda::load(device) : Status();
}

}  // namespace niccolite::operations
