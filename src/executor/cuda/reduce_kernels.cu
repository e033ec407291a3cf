// The kernels that reduce elements of one type: every reduction by every protocol, and by the
// kernels for operations of one step and in phases. Compiled once for each type, with
// NICCOLITE_TYPE (an enumerator of DataType) and NICCOLITE_TYPE_NAME defined, and
// NICCOLITE_TYPE_IS_UNSIGNED where it is.
#include "executor/cuda/define_kernel.cuh"
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/phase_kernel.cuh"

namespace {
using niccolite::executor::DataType;
using niccolite::executor::ReduceOp;
template <ReduceOp kOp>
using Reduce = niccolite::executor::cuda::ReduceOperation<DataType::NICCOLITE_TYPE, kOp>;
}  // namespace

// name: float32_sum.
#define NICCOLITE_KERNELS_OF_PEERS(name, Operation, peers)                              \
  NICCOLITE_KERNEL(direct_##name##_##peers, LaunchArgs,                                 \
                   run_direct<Operation, peers, /*kSendsEach=*/false>(args))            \
  NICCOLITE_KERNEL(direct_each_##name##_##peers, LaunchArgs,                            \
                   run_direct<Operation, peers, /*kSendsEach=*/true>(args))             \
  NICCOLITE_KERNEL(list_##name##_##peers, LaunchArgs, run_list<Operation, peers>(args)) \
  NICCOLITE_KERNEL(direct_list_##name##_##peers, ListArgs,                              \
                   run_direct_list<Operation, peers>(args))                             \
  NICCOLITE_KERNEL(phases_##name##_##peers, LaunchArgs, PhaseKernel<Operation, peers>(args).run())
static_assert(niccolite::executor::cuda::kFewDirectPeers == 3 &&
              niccolite::executor::cuda::kMostDirectPeers == 7);
#define NICCOLITE_KERNELS_NAMED(name, Operation)                                                 \
  NICCOLITE_KERNELS_OF_PEERS(name, Operation, 3)                                                 \
  NICCOLITE_KERNELS_OF_PEERS(name, Operation, 7)                                                 \
  NICCOLITE_KERNEL(direct_##name##_3_in_host, LaunchArgs,                                        \
                   run_direct<Operation, 3, /*kSendsEach=*/false, /*kInHost=*/true>(args))       \
  NICCOLITE_KERNEL(direct_each_##name##_3_in_host, LaunchArgs,                                   \
                   run_direct<Operation, 3, /*kSendsEach=*/true, /*kInHost=*/true>(args))        \
  NICCOLITE_KERNEL(run_##name##_ll, LaunchArgs, run_kernel<Operation, Protocol::LL>(args))       \
  NICCOLITE_KERNEL(run_##name##_ll128, LaunchArgs, run_kernel<Operation, Protocol::LL128>(args)) \
  NICCOLITE_KERNEL(run_##name##_simple, LaunchArgs, run_kernel<Operation, Protocol::Simple>(args))
#define NICCOLITE_KERNELS_OF_NAMED(type, op, kOp) NICCOLITE_KERNELS_NAMED(type##_##op, Reduce<kOp>)
#define NICCOLITE_KERNELS_OF(type, op, kOp) NICCOLITE_KERNELS_OF_NAMED(type, op, kOp)

// (Unsigned integers have the sums and products of signed ones: reduced_as().)
#ifndef NICCOLITE_TYPE_IS_UNSIGNED
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, ReduceOp::Sum)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, product, ReduceOp::Product)
#endif
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, max, ReduceOp::Max)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, min, ReduceOp::Min)
