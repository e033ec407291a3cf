#include "operations/team_trial.h"

#include "executor/cuda/patterns/one_sided.h"
#include "executor/host/team_trial.h"

namespace niccolite::operations {

using executor::TeamTrial;
using executor::TeamVerdict;

Status try_team(gpu::Machine& machine, int device, TeamTrial trial) {
  const gpu::Memory verdict = TRY(machine.allocate_host(sizeof(uint32_t)));
  trial.verdict = static_cast<uint32_t*>(verdict.data());
  const gpu::Stream stream = TRY(machine.create_stream(device));
  if (machine.kind() == gpu::Kind::Cuda) {
    TRY(executor::cuda::launch(machine, device, stream.handle(), trial));
  } else {
    auto& virtual_machine = static_cast<gpu::virtual_::VirtualMachine&>(machine);
    TRY(executor::host::launch(virtual_machine, device, stream.handle(), trial));
  }
  TRY(machine.synchronize_stream(device, stream.handle()));
  if (trial.step == TeamTrial::Step::Store) return {};
  switch (static_cast<TeamVerdict>(*trial.verdict)) {
    case TeamVerdict::Works:
      return {};
    case TeamVerdict::LoadIsWrong:
      return Status::remote_error("a load from the team does not bring the sum of its members'");
    case TeamVerdict::StoreLost:
    case TeamVerdict::None:
      break;
  }
  return Status::remote_error("what the members have stored to the team has not arrived");
}

}  // namespace niccolite::operations
