// The CUDA Runtime for C++: the functions, and overloads that take typed pointers.
#ifndef VCUDA_CUDA_RUNTIME_H
#define VCUDA_CUDA_RUNTIME_H

#define __CUDA_RUNTIME_H__  // the name of CUDA's own header, which programs ask for

#include "cuda_runtime_api.h"
#include "vector_functions.h"

#ifdef __cplusplus

template <typename T>
inline cudaError_t cudaMalloc(T** pointer, size_t size) {
  return ::cudaMalloc(reinterpret_cast<void**>(pointer), size);
}

template <typename T>
inline cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height) {
  return ::cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width, height);
}

template <typename T>
inline cudaError_t cudaMallocManaged(T** pointer, size_t size,
                                     unsigned int flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void**>(pointer), size, flags);
}

template <typename T>
inline cudaError_t cudaMallocAsync(T** pointer, size_t size, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void**>(pointer), size, stream);
}

inline cudaError_t cudaMallocHost(void** pointer, size_t size, unsigned int flags) {
  return ::cudaHostAlloc(pointer, size, flags);
}

template <typename T>
inline cudaError_t cudaMallocHost(T** pointer, size_t size,
                                  unsigned int flags = cudaHostAllocDefault) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), size, flags);
}

template <typename T>
inline cudaError_t cudaHostAlloc(T** pointer, size_t size, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), size, flags);
}

template <typename T>
inline cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned int flags) {
  return ::cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int flags) {
  return ::cudaEventCreateWithFlags(event, flags);
}

/// The form of CUDA 11: the places for an error's node and text stay as they are.
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                        cudaGraphNode_t*, char*, size_t) {
  return ::cudaGraphInstantiate(executable, graph, 0);
}

template <typename T>
inline cudaError_t cudaLaunchKernel(T* function, dim3 grid, dim3 block, void** arguments,
                                    size_t shared = 0, cudaStream_t stream = 0) {
  return ::cudaLaunchKernel(reinterpret_cast<const void*>(function), grid, block, arguments, shared,
                            stream);
}

#endif

#endif
