/* The headers in C, as strict as a compiler can be asked to be. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>

int main(void) {
  int devices = 0;
  float* memory = 0;
  float back = 0;
  const float there = 2.5f;
  cudaStream_t stream;
  struct cudaDeviceProp prop;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) return 1;
  if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess) return 2;
  if (cudaMalloc((void**)&memory, sizeof there) != cudaSuccess) return 3;
  if (cudaStreamCreate(&stream) != cudaSuccess) return 4;
  if (cudaMemcpyAsync(memory, &there, sizeof there, cudaMemcpyHostToDevice, stream)) return 5;
  if (cudaMemcpyAsync(&back, memory, sizeof back, cudaMemcpyDeviceToHost, stream)) return 6;
  if (cudaStreamSynchronize(stream) != cudaSuccess || back != there) return 7;
  if (cudaStreamDestroy(stream) != cudaSuccess || cudaFree(memory) != cudaSuccess) return 8;
  printf("%d devices named %s\n", devices, prop.name);
  return 0;
}
