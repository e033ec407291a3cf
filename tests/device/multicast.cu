// Compiled by architectures.cmake for an architecture without multicast, and for one with it.
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

__global__ void store(std::byte* target) { ptx::store_to_team(target, {}); }
__global__ void store_words(std::byte* target) { ptx::store_words_to_team(target, {}); }

#define LOAD(type, op)                                                             \
  __global__ void load_##type##_##op(std::byte* target, const std::byte* source) { \
    const Vec16 vec16 = ptx::load_from_team<DataType::type, ReduceOp::op>(source); \
    ptx::store_vec16(target, vec16);                                               \
  }
#define LOAD_ALL(type) LOAD(type, Sum) LOAD(type, Max) LOAD(type, Min)
LOAD(Float32, Sum)
LOAD(Float64, Sum)
LOAD_ALL(Float16)
LOAD_ALL(Bfloat16)
LOAD_ALL(Int32)
LOAD_ALL(Uint32)
LOAD_ALL(Int64)
LOAD_ALL(Uint64)

}  // namespace niccolite::executor::cuda
