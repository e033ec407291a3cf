// The kernels that reduce elements of one type: every reduction by every protocol, and by the
// kernels for operations of one step and in phases. Compiled once for each type, with
// NICCOLITE_TYPE (an enumerator of DataType) and NICCOLITE_TYPE_NAME defined, and
// NICCOLITE_TYPE_IS_UNSIGNED where it is.
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/phase_kernel.cuh"

namespace {
using niccolite::executor::DataType;
using niccolite::executor::ReduceOp;
template <ReduceOp kOp>
using Reduce = niccolite::executor::cuda::ReduceOperation<DataType::NICCOLITE_TYPE, kOp>;
}  // namespace

#define NICCOLITE_KERNELS_OF_NAMED(type, op, ReduceOp)                                            \
  NICCOLITE_DIRECT_KERNEL(direct_##type##_##op##_3, Reduce<ReduceOp>, 3, false, false)            \
  NICCOLITE_DIRECT_KERNEL(direct_##type##_##op##_7, Reduce<ReduceOp>, 7, false, false)            \
  NICCOLITE_DIRECT_KERNEL(direct_each_##type##_##op##_3, Reduce<ReduceOp>, 3, true, false)        \
  NICCOLITE_DIRECT_KERNEL(direct_each_##type##_##op##_7, Reduce<ReduceOp>, 7, true, false)        \
  NICCOLITE_DIRECT_KERNEL(direct_##type##_##op##_3_in_host, Reduce<ReduceOp>, 3, false, true)     \
  NICCOLITE_DIRECT_KERNEL(direct_each_##type##_##op##_3_in_host, Reduce<ReduceOp>, 3, true, true) \
  NICCOLITE_LIST_KERNEL(list_##type##_##op##_3, Reduce<ReduceOp>, 3)                              \
  NICCOLITE_LIST_KERNEL(list_##type##_##op##_7, Reduce<ReduceOp>, 7)                              \
  NICCOLITE_DIRECT_LIST_KERNEL(direct_list_##type##_##op##_3, Reduce<ReduceOp>, 3)                \
  NICCOLITE_DIRECT_LIST_KERNEL(direct_list_##type##_##op##_7, Reduce<ReduceOp>, 7)                \
  NICCOLITE_PHASE_KERNEL(phases_##type##_##op##_3, Reduce<ReduceOp>, 3)                           \
  NICCOLITE_PHASE_KERNEL(phases_##type##_##op##_7, Reduce<ReduceOp>, 7)                           \
  NICCOLITE_KERNEL(run_##type##_##op##_ll, Reduce<ReduceOp>, LL)                                  \
  NICCOLITE_KERNEL(run_##type##_##op##_ll128, Reduce<ReduceOp>, LL128)                            \
  NICCOLITE_KERNEL(run_##type##_##op##_simple, Reduce<ReduceOp>, Simple)
static_assert(niccolite::executor::cuda::kFewDirectPeers == 3 &&
              niccolite::executor::cuda::kMostDirectPeers == 7);
#define NICCOLITE_KERNELS_OF(type, op, ReduceOp) NICCOLITE_KERNELS_OF_NAMED(type, op, ReduceOp)

// (Unsigned integers have the sums and products of signed ones: reduced_as().)
#ifndef NICCOLITE_TYPE_IS_UNSIGNED
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, ReduceOp::Sum)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, product, ReduceOp::Product)
#endif
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, max, ReduceOp::Max)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, min, ReduceOp::Min)
