#include "executor/cuda/patterns/one_sided.h"

#include <algorithm>

#include "executor/cuda/launch/kernels.h"
#include "executor/cuda/patterns/one_sided_args.h"
#include "executor/protocol/relay.h"
#include "gpu/cuda/machine.h"

namespace niccolite::executor::cuda {
namespace {

using gpu::cuda::CudaMachine;

static_assert(SignalWaitArgs::kMost == kMostSignalWaits);

template <typename Args>
Status launch(gpu::Machine& any_machine, int device, gpu::StreamHandle stream,
              OneSidedKernel kernel, uint32_t threads, Args args) {
  auto& machine = static_cast<CudaMachine&>(any_machine);
  const gpu::cuda::Driver& driver = machine.driver();
  gpu::cuda::CuFunction function = TRY(find_kernel(device, kernel));
  const gpu::cuda::ScopedContext scoped = TRY(machine.enter(device));
  gpu::cuda::CuLaunchConfig config{};
  config.grid_x = config.grid_y = config.grid_z = 1;
  config.block_x = threads;
  config.block_y = config.block_z = 1;
  config.stream = gpu::cuda::as_stream(stream);
  size_t bytes = sizeof args;
  void* extra[] = {gpu::cuda::kCuLaunchParameterPointer, &args, gpu::cuda::kCuLaunchParameterSize,
                   &bytes, gpu::cuda::kCuLaunchParameterEnd};
  return driver.check(driver.cuLaunchKernelEx(&config, function, nullptr, extra),
                      "cuLaunchKernelEx(a one-sided operation on device {})", device);
}

}  // namespace

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const Put& put) {
  PutArgs args{put.source, put.target, put.bytes, put.own, put.arrived};
  return launch(machine, device, stream, OneSidedKernel::Put, put_threads(put.bytes), args);
}

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const RelayedPut& put) {
  RelayedPutArgs args{};
  args.source = put.source;
  args.bytes = put.bytes;
  args.window = put.window;
  args.offset = put.offset;
  args.own = put.own;
  args.slots = put.port.slots;
  args.control = put.port.control;
  args.remote_control = put.port.remote_control;
  args.notes = put.port.notes;
  args.command = &put.control->abort;
  const uint64_t most = std::min<uint64_t>(put.bytes, kPutDataBytes);
  TRY(launch(machine, device, stream, OneSidedKernel::RelayedPut, put_threads(most), args));
  put.port.bells[0]->announce();
  return {};
}

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const SignalWait& wait) {
  SignalWaitArgs args{};
  args.command = &wait.control->abort;
  args.items = static_cast<uint32_t>(wait.items.size());
  for (size_t i = 0; i < wait.items.size(); ++i)
    args.item[i] = {wait.items[i].line, wait.items[i].count};
  return launch(machine, device, stream, OneSidedKernel::SignalWait, 32, args);
}

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const TeamTrial& trial) {
  return launch(machine, device, stream, OneSidedKernel::TeamTrial, 32, trial);
}

}  // namespace niccolite::executor::cuda
