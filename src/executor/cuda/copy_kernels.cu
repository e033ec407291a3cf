// The kernels for programs that only move bytes.
#include "executor/cuda/define_kernel.cuh"
#include "executor/cuda/dependent_launch.cuh"
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/one_sided.cuh"

namespace {
using niccolite::executor::cuda::CopyOperation;
}  // namespace

/// A kernel that messages have, and that may run beside the one before it: `run`.
#define NICCOLITE_KERNEL_BESIDE(name, run)                                                   \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    using namespace niccolite::executor::cuda;                                               \
    using niccolite::executor::Protocol;                                                     \
    let_next_begin();                                                                        \
    mark_begin(args.header);                                                                 \
    run(args);                                                                               \
    await_last();                                                                            \
    mark_end(args.header);                                                                   \
  }

NICCOLITE_KERNEL_BESIDE(messages, run_messages</*kInHost=*/false>)
NICCOLITE_KERNEL_BESIDE(messages_in_host, run_messages</*kInHost=*/true>)
NICCOLITE_KERNEL_BESIDE(copy_ll, (run_kernel<CopyOperation, Protocol::LL>))
NICCOLITE_KERNEL_BESIDE(copy_ll128, (run_kernel<CopyOperation, Protocol::LL128>))
NICCOLITE_KERNEL_BESIDE(copy_simple, (run_kernel<CopyOperation, Protocol::Simple>))
NICCOLITE_KERNEL_BESIDE(direct_copy_3, (run_direct<CopyOperation, 3, /*kSendsEach=*/false>))
NICCOLITE_KERNEL_BESIDE(direct_copy_7, (run_direct<CopyOperation, 7, /*kSendsEach=*/false>))
NICCOLITE_KERNEL_BESIDE(direct_each_copy_3, (run_direct<CopyOperation, 3, /*kSendsEach=*/true>))
NICCOLITE_KERNEL_BESIDE(direct_each_copy_7, (run_direct<CopyOperation, 7, /*kSendsEach=*/true>))
NICCOLITE_KERNEL_BESIDE(direct_copy_3_in_host, (run_direct<CopyOperation, 3, false, true>))
NICCOLITE_KERNEL_BESIDE(direct_each_copy_3_in_host, (run_direct<CopyOperation, 3, true, true>))
NICCOLITE_KERNEL(list_copy_3, LaunchArgs, run_list<CopyOperation, 3>(args))
NICCOLITE_KERNEL(list_copy_7, LaunchArgs, run_list<CopyOperation, 7>(args))
NICCOLITE_KERNEL(direct_list_copy_3, ListArgs, run_direct_list<CopyOperation, 3>(args))
NICCOLITE_KERNEL(direct_list_copy_7, ListArgs, run_direct_list<CopyOperation, 7>(args))
