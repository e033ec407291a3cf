// Compiled by architectures.cmake for an architecture without bulk copies, and for one with them.
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

__global__ void load(std::byte* shared, const std::byte* source, uint64_t* barrier) {
  ptx::bulk_load(shared, source, 16, barrier);
}
__global__ void store(std::byte* target, const std::byte* shared) {
  ptx::bulk_store(target, shared, 16);
}
__global__ void commit() { ptx::commit_bulk_stores(); }
__global__ void await_reads() { ptx::await_bulk_reads<1>(); }
__global__ void await_stores() { ptx::await_bulk_stores<0>(); }

}  // namespace niccolite::executor::cuda
