// Shared by the examples, and by measurements in bench/ that nvcc compiles by hand: they stop at
// the first failing call and say which one it was.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>

#define CHECK_CUDA(call)                                                 \
  do {                                                                   \
    const cudaError_t result = (call);                                   \
    if (result != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(result));                          \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

// ncclGetErrorString names the kind of error, ncclGetLastError says what happened and what to do.
#define CHECK_NCCL(call)                                                     \
  do {                                                                       \
    const ncclResult_t result = (call);                                      \
    if (result != ncclSuccess) {                                             \
      std::fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
                   ncclGetErrorString(result), ncclGetLastError(nullptr));   \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)
