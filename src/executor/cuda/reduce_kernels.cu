// The kernels that reduce elements of one type: every fold by every protocol, and by the kernels
// for operations of one step and in phases. Compiled once for each type, with NICCOLITE_TYPE (an
// enumerator of DataType) and NICCOLITE_TYPE_NAME defined, and NICCOLITE_TYPE_IS_UNSIGNED where it
// is.
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/phase_kernel.cuh"

namespace {
using niccolite::executor::DataType;
using niccolite::executor::Fold;
template <Fold kFold>
using Reduce = niccolite::executor::cuda::ReduceOperation<DataType::NICCOLITE_TYPE, kFold>;
}  // namespace

#define NICCOLITE_KERNELS_OF_NAMED(type, fold, Fold)                              \
  NICCOLITE_DIRECT_KERNEL(direct_##type##_##fold##_3, Reduce<Fold>, 3, false)     \
  NICCOLITE_DIRECT_KERNEL(direct_##type##_##fold##_7, Reduce<Fold>, 7, false)     \
  NICCOLITE_DIRECT_KERNEL(direct_each_##type##_##fold##_3, Reduce<Fold>, 3, true) \
  NICCOLITE_DIRECT_KERNEL(direct_each_##type##_##fold##_7, Reduce<Fold>, 7, true) \
  NICCOLITE_LIST_KERNEL(list_##type##_##fold##_3, Reduce<Fold>, 3)                \
  NICCOLITE_LIST_KERNEL(list_##type##_##fold##_7, Reduce<Fold>, 7)                \
  NICCOLITE_DIRECT_LIST_KERNEL(direct_list_##type##_##fold##_3, Reduce<Fold>, 3)  \
  NICCOLITE_DIRECT_LIST_KERNEL(direct_list_##type##_##fold##_7, Reduce<Fold>, 7)  \
  NICCOLITE_PHASE_KERNEL(phases_##type##_##fold##_3, Reduce<Fold>, 3)             \
  NICCOLITE_PHASE_KERNEL(phases_##type##_##fold##_7, Reduce<Fold>, 7)             \
  NICCOLITE_KERNEL(run_##type##_##fold##_ll, Reduce<Fold>, LL)                    \
  NICCOLITE_KERNEL(run_##type##_##fold##_ll128, Reduce<Fold>, LL128)              \
  NICCOLITE_KERNEL(run_##type##_##fold##_simple, Reduce<Fold>, Simple)
static_assert(niccolite::executor::cuda::kFewDirectPeers == 3 &&
              niccolite::executor::cuda::kMostDirectPeers == 7);
#define NICCOLITE_KERNELS_OF(type, fold, Fold) NICCOLITE_KERNELS_OF_NAMED(type, fold, Fold)

// (Unsigned integers have the sums and products of signed ones: folded_as().)
#ifndef NICCOLITE_TYPE_IS_UNSIGNED
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, Fold::Sum)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, product, Fold::Product)
#endif
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, max, Fold::Max)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, min, Fold::Min)
