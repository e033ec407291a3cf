// The part of CUDA that niccolite/device.h and nccl.h need, for clang alone: the bitcode is built
// without CUDA's toolkit, whose headers older versions of clang do not read. Instructions are
// written as PTX, since intrinsics change between the versions of LLVM that read the bitcode.
#ifndef NICCOLITE_BITCODE_CUDA_RUNTIME_H_
#define NICCOLITE_BITCODE_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))

// ---- The host's part: declared, never called

enum cudaError_t { cudaSuccess };
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);

// ---- Threads

#define NICCOLITE_INDEX(name, of)                                    \
  __device__ __forceinline__ dim3 niccolite_##name() {               \
    return {static_cast<unsigned>(__nvvm_read_ptx_sreg_##of##_x()),  \
            static_cast<unsigned>(__nvvm_read_ptx_sreg_##of##_y()),  \
            static_cast<unsigned>(__nvvm_read_ptx_sreg_##of##_z())}; \
  }
NICCOLITE_INDEX(thread_index, tid)
NICCOLITE_INDEX(block_size, ntid)
NICCOLITE_INDEX(block_index, ctaid)
NICCOLITE_INDEX(grid_size, nctaid)
#undef NICCOLITE_INDEX
#define threadIdx niccolite_thread_index()
#define blockDim niccolite_block_size()
#define blockIdx niccolite_block_index()
#define gridDim niccolite_grid_size()

// __syncthreads is known to clang.
__device__ __forceinline__ int __syncthreads_or(int value) {
  int result;
  asm volatile(
      "{ .reg .pred mine, any; setp.ne.s32 mine, %1, 0; bar.red.or.pred any, 0, mine; "
      "selp.s32 %0, 1, 0, any; }"
      : "=r"(result)
      : "r"(value)
      : "memory");
  return result;
}
__device__ __forceinline__ void __syncwarp() {
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}
__device__ __forceinline__ int __any_sync(unsigned mask, int value) {
  int result;
  asm volatile(
      "{ .reg .pred mine, any; setp.ne.s32 mine, %1, 0; vote.sync.any.pred any, mine, %2; "
      "selp.s32 %0, 1, 0, any; }"
      : "=r"(result)
      : "r"(value), "r"(mask)
      : "memory");
  return result;
}

// ---- Memory and values

__device__ __forceinline__ void* memcpy(void* to, const void* from, size_t bytes) {
  return __builtin_memcpy(to, from, bytes);
}
__device__ __forceinline__ void __threadfence_system() { asm volatile("membar.sys;" ::: "memory"); }
__device__ __forceinline__ unsigned atomicAdd_system(unsigned* address, unsigned value) {
  unsigned before;
  asm volatile("atom.sys.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(value)
               : "memory");
  return before;
}
__device__ __forceinline__ float __uint_as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
__device__ __forceinline__ unsigned __float_as_uint(float value) {
  return __builtin_bit_cast(unsigned, value);
}
__device__ __forceinline__ long long __double_as_longlong(double value) {
  return __builtin_bit_cast(long long, value);
}

#endif
