// Carries out one step of a multicast team's trial (executor/team_trial.h), and waits for its
// kernel, perhaps for ever: the caller's thread bounds the time. Thread safety: any thread.
#pragma once

#include "executor/team_trial.h"
#include "gpu/machine.h"

namespace niccolite::operations {

/// `trial.verdict` is set here. RemoteError: the team loses stores, or loads wrong sums;
/// CudaError.
Status try_team(gpu::Machine& machine, int device, executor::TeamTrial trial);

}  // namespace niccolite::operations
