// The kernels that reduce elements of one type: every fold by every protocol. Compiled once for
// each type, with NICCOLITE_TYPE (an enumerator of DataType) and NICCOLITE_TYPE_NAME defined.
#include "executor/cuda/kernel.cuh"

namespace {
using niccolite::executor::DataType;
using niccolite::executor::Fold;
template <Fold kFold>
using Reduce = niccolite::executor::cuda::ReduceOperation<DataType::NICCOLITE_TYPE, kFold>;
}  // namespace

#define NICCOLITE_KERNELS_OF_NAMED(type, fold, Fold)           \
  NICCOLITE_KERNEL(run_##type##_##fold##_ll, Reduce<Fold>, LL) \
  NICCOLITE_KERNEL(run_##type##_##fold##_simple, Reduce<Fold>, Simple)
#define NICCOLITE_KERNELS_OF(type, fold, Fold) NICCOLITE_KERNELS_OF_NAMED(type, fold, Fold)

NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, Fold::Sum)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, product, Fold::Product)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, max, Fold::Max)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, min, Fold::Min)
