// The kernels that reduce elements of one type: every reduction by every protocol, and by the
// kernels for operations of one step and in phases. Compiled once for each type, with
// NICCOLITE_TYPE (an enumerator of DataType) and NICCOLITE_TYPE_NAME defined, and
// NICCOLITE_TYPE_IS_UNSIGNED where it is.
#include "executor/cuda/interpreter/define_kernel.cuh"
#include "executor/cuda/interpreter/kernel.cuh"
#include "executor/cuda/interpreter/places_kernel.cuh"
#include "executor/cuda/interpreter/team_kernel.cuh"
#include "executor/cuda/patterns/direct_kernels.cuh"
#include "executor/cuda/patterns/phase_kernel.cuh"

namespace {
using niccolite::executor::DataType;
using niccolite::executor::ReduceOp;
template <ReduceOp kOp>
using Reduce = niccolite::executor::cuda::ReduceOperation<DataType::NICCOLITE_TYPE, kOp>;
}  // namespace

static_assert(niccolite::executor::cuda::kFewDirectPeers == 3 &&
              niccolite::executor::cuda::kMostDirectPeers == 7);
#define NICCOLITE_KERNELS_OF_NAMED(type, op, kOp) \
  NICCOLITE_REDUCE_KERNELS(NICCOLITE_KERNEL, type##_##op, Reduce<kOp>)
#define NICCOLITE_KERNELS_OF(type, op, kOp) NICCOLITE_KERNELS_OF_NAMED(type, op, kOp)

// (Unsigned integers have the sums and products of signed ones: reduced_as().)
#ifndef NICCOLITE_TYPE_IS_UNSIGNED
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, ReduceOp::Sum)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, product, ReduceOp::Product)
#endif
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, max, ReduceOp::Max)
NICCOLITE_KERNELS_OF(NICCOLITE_TYPE_NAME, min, ReduceOp::Min)

#define NICCOLITE_TEAM_KERNELS_OF_NAMED(type, op, kOp) \
  NICCOLITE_TEAM_KERNELS(NICCOLITE_KERNEL, type##_##op, Reduce<kOp>)
#define NICCOLITE_TEAM_KERNELS_OF(type, op, kOp) NICCOLITE_TEAM_KERNELS_OF_NAMED(type, op, kOp)

namespace {
constexpr bool switch_has(ReduceOp op) {
  return niccolite::executor::switch_reduces(DataType::NICCOLITE_TYPE, op);
}
}  // namespace
#ifdef NICCOLITE_SWITCH_SUMS
static_assert(switch_has(ReduceOp::Sum));
NICCOLITE_TEAM_KERNELS_OF(NICCOLITE_TYPE_NAME, sum, ReduceOp::Sum)
#elif !defined(NICCOLITE_TYPE_IS_UNSIGNED)
static_assert(!switch_has(ReduceOp::Sum));
#endif
#ifdef NICCOLITE_SWITCH_EXTREMES
static_assert(switch_has(ReduceOp::Max) && switch_has(ReduceOp::Min));
NICCOLITE_TEAM_KERNELS_OF(NICCOLITE_TYPE_NAME, max, ReduceOp::Max)
NICCOLITE_TEAM_KERNELS_OF(NICCOLITE_TYPE_NAME, min, ReduceOp::Min)
#else
static_assert(!switch_has(ReduceOp::Max) && !switch_has(ReduceOp::Min));
#endif
