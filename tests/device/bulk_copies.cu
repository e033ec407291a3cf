// Compiled by bulk_copies.cmake for an architecture without bulk copies, and for one with them.
#include "executor/cuda/ptx.cuh"

namespace niccolite::executor::cuda {

__global__ void init(uint64_t* barrier) { ptx::init_bulk_barrier(barrier, 1); }
__global__ void fence_barriers() { ptx::fence_bulk_barriers(); }
__global__ void fence() { ptx::fence_bulk(); }
__global__ void load(std::byte* shared, const std::byte* source, uint64_t* barrier) {
  ptx::bulk_load(shared, source, 16, barrier);
}
__global__ void await_load(uint64_t* barrier) { ptx::await_bulk_load(barrier, 0); }
__global__ void store(std::byte* target, const std::byte* shared) {
  ptx::bulk_store(target, shared, 16);
}
__global__ void commit() { ptx::commit_bulk_stores(); }
__global__ void await_reads() { ptx::await_bulk_reads<1>(); }
__global__ void await_stores() { ptx::await_bulk_stores<0>(); }

}  // namespace niccolite::executor::cuda
