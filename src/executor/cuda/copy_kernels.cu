// The kernels for programs that only move bytes.
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/one_sided.cuh"

namespace {
using niccolite::executor::cuda::CopyOperation;
}  // namespace

NICCOLITE_MESSAGES_KERNEL(messages)
NICCOLITE_DIRECT_KERNEL(direct_copy_3, CopyOperation, 3, /*kSendsEach=*/false)
NICCOLITE_DIRECT_KERNEL(direct_copy_7, CopyOperation, 7, /*kSendsEach=*/false)
NICCOLITE_DIRECT_KERNEL(direct_each_copy_3, CopyOperation, 3, /*kSendsEach=*/true)
NICCOLITE_DIRECT_KERNEL(direct_each_copy_7, CopyOperation, 7, /*kSendsEach=*/true)
NICCOLITE_LIST_KERNEL(list_copy_3, CopyOperation, 3)
NICCOLITE_LIST_KERNEL(list_copy_7, CopyOperation, 7)
NICCOLITE_DIRECT_LIST_KERNEL(direct_list_copy_3, CopyOperation, 3)
NICCOLITE_DIRECT_LIST_KERNEL(direct_list_copy_7, CopyOperation, 7)
NICCOLITE_KERNEL(copy_ll, CopyOperation, LL)
NICCOLITE_KERNEL(copy_ll128, CopyOperation, LL128)
NICCOLITE_KERNEL(copy_simple, CopyOperation, Simple)
