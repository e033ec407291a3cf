// CUDA's function and variable qualifiers. A plain C++ compiler has no device, so here they mean
// nothing.
#ifndef VCUDA_HOST_DEFINES_H
#define VCUDA_HOST_DEFINES_H

#if defined(__CUDACC__)
#error "vcuda's headers are for host programs; nvcc brings CUDA's own"
#endif

#ifndef __host__
#define __host__
#endif
#ifndef __device__
#define __device__
#endif
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define CUDARTAPI
#define CUDART_CB
#define CUDA_CB

#endif
