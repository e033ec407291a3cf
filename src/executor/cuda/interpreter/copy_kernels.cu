// The kernels for programs that only move bytes.
#include "executor/cuda/interpreter/define_kernel.cuh"
#include "executor/cuda/interpreter/dependent_launch.cuh"
#include "executor/cuda/interpreter/kernel.cuh"
#include "executor/cuda/interpreter/places_kernel.cuh"
#include "executor/cuda/interpreter/team_kernel.cuh"
#include "executor/cuda/patterns/direct_kernels.cuh"
#include "executor/cuda/patterns/one_sided.cuh"
#include "executor/cuda/patterns/team_trial.cuh"

namespace {
using niccolite::executor::cuda::CopyOperation;
}  // namespace

/// A kernel that may run beside the one before it.
#define NICCOLITE_KERNEL_BESIDE(name, variant, protocol, most_peers, in_host, Args, ...)  \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1) \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::Args args) {    \
    using namespace niccolite::executor::cuda;                                            \
    using niccolite::executor::Protocol;                                                  \
    begin_beside(args.header);                                                            \
    mark_begin(args.header);                                                              \
    __VA_ARGS__;                                                                          \
    await_last<Protocol::protocol == Protocol::Simple>();                                 \
    mark_end(args.header);                                                                \
  }

NICCOLITE_COPY_KERNELS_BESIDE(NICCOLITE_KERNEL_BESIDE, CopyOperation)
NICCOLITE_COPY_KERNELS(NICCOLITE_KERNEL, CopyOperation)
