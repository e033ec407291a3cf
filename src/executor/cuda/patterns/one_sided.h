// One-sided operations on CUDA GPUs. Thread safety: any thread. What the operations name lives
// until the stream has passed them, or the graph that holds them is gone. Errors: those of
// find_kernel(); CudaError when the launch fails.
#pragma once

#include "executor/one_sided.h"
#include "gpu/streams.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::executor::cuda {

Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const Put& put);
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream, const SignalWait& wait);

}  // namespace niccolite::executor::cuda
