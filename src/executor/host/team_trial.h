// The trial of a multicast team on virtual GPUs. Thread safety: any thread.
#pragma once

#include "executor/team_trial.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const TeamTrial& trial);

}  // namespace niccolite::executor::host
