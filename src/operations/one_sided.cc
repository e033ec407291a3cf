#include "operations/one_sided.h"

#include <algorithm>

#include "executor/cuda/patterns/one_sided.h"
#include "executor/host/one_sided.h"

namespace niccolite::operations {
namespace {

template <typename Operation>
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream,
              const Operation& operation) {
  if (machine.kind() == gpu::Kind::Cuda)
    return executor::cuda::launch(machine, device, stream, operation);
  auto& virtual_machine = static_cast<gpu::virtual_::VirtualMachine&>(machine);
  return executor::host::launch(virtual_machine, device, stream, operation);
}

}  // namespace

OneSided::OneSided(gpu::Machine& machine, int device, const bootstrap::Member* member,
                   executor::ControlWords* control, transport::Endpoint::Ask ask,
                   std::shared_ptr<GraphUses> graphs)
    : machine_(machine),
      device_(device),
      control_(control),
      signals_(machine, device, member, std::move(ask)),
      in_flight_(machine, device, std::move(graphs)) {}

Status OneSided::run(const OneSidedCall& call, const Deadline& deadline) {
  TRY(in_flight_.before(call.stream));
  TRY(call.is_wait() ? wait(call) : put(call, deadline));
  return in_flight_.after(call.stream);
}

Status OneSided::put(const OneSidedCall& call, const Deadline& deadline) {
  executor::SignalLine* const remote = TRY(signals_.remote_line(call.peer, deadline));
  executor::Put put{.source = static_cast<const std::byte*>(call.source),
                    .target = call.target,
                    .bytes = call.bytes,
                    .own = TRY(signals_.line_of(call.peer)),
                    .arrived = &remote->arrived};
  if (put.bytes > executor::kMostPutBytes) {
    TRY(machine_.copy_async(put.target, put.source, put.bytes, device_, call.stream));
    put.bytes = 0;
  }
  return launch(machine_, device_, call.stream, put);
}

Status OneSided::wait(const OneSidedCall& call) {
  for (size_t first = 0; first < call.waits.size(); first += executor::kMostSignalWaits) {
    executor::SignalWait wait{.items = {}, .control = control_};
    const size_t end = std::min(first + executor::kMostSignalWaits, call.waits.size());
    for (size_t i = first; i < end; ++i)
      wait.items.push_back(
          {TRY(signals_.line_of(call.waits[i].peer)), static_cast<uint64_t>(call.waits[i].count)});
    TRY(launch(machine_, device_, call.stream, wait));
  }
  return {};
}

}  // namespace niccolite::operations
