// One-sided operations on CUDA GPUs, and the trial of a multicast team: kernels of one CTA. Thread
// safety: any thread. Objects that an operation names live until the stream has passed it, or the
// graph that holds it is gone. Errors: as find_kernel(); CudaError when the launch fails.
#pragma once

#include "executor/one_sided.h"
#include "executor/team_trial.h"
#include "gpu/streams.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::executor::cuda {

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const Put& put);
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const RelayedPut& put);
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const SignalWait& wait);
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const TeamTrial& trial);

}  // namespace niccolite::executor::cuda
