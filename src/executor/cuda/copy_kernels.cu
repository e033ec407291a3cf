// The kernels for programs that only move bytes.
#include "executor/cuda/kernel.cuh"

NICCOLITE_KERNEL(copy_ll, niccolite::executor::cuda::CopyOperation, LL)
NICCOLITE_KERNEL(copy_ll128, niccolite::executor::cuda::CopyOperation, LL128)
NICCOLITE_KERNEL(copy_simple, niccolite::executor::cuda::CopyOperation, Simple)
