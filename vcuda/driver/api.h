// The types of the CUDA driver API that libcuda.so.1 of virtual GPUs takes and gives, as in CUDA
// 13's cuda.h. Programs compile against NVIDIA's header; tests/vcuda compares the two if that
// header is installed. Streams, events and graphs have the types of the runtime (driver_types.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

extern "C" {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = uint64_t;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUstream = cudaStream_t;
using CUevent = cudaEvent_t;
using CUgraph = cudaGraph_t;
using CUgraphNode = cudaGraphNode_t;
using CUgraphExec = cudaGraphExec_t;
using CUuserObject = cudaUserObject_t;
using CUhostFn = void (*)(void* data);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* data);

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};

struct CUmemPoolProps {
  int allocType;
  int handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  unsigned char compressionType;  // from here on allocFlags
  unsigned char gpuDirectRDMACapable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct CUmulticastObjectProp {
  unsigned int numDevices;
  size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};

union CUstreamBatchMemOpParams {
  struct {
    int operation;
    CUdeviceptr address;
    uint64_t value;  // of 4 bytes or 8
    unsigned int flags;
    CUdeviceptr alias;
  } value;
  uint64_t pad[6];
};

struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};

struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  void* srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  void* dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
};

struct CUDA_MEMCPY3D {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  void* srcArray;
  void* reserved0;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  void* dstArray;
  void* reserved1;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
};

struct CUDA_MEMSET_NODE_PARAMS {
  CUdeviceptr dst;
  size_t pitch;
  unsigned int value;
  unsigned int elementSize;
  size_t width;
  size_t height;
};

struct CUgraphNodeParams {
  int type;  // as cudaGraphNodeType
  int reserved0[3];
  union {
    long long reserved1[29];
    struct {
      int flags;
      int reserved;
      CUcontext context;
      CUDA_MEMCPY3D copyParams;
    } memcpy;
    CUDA_MEMSET_NODE_PARAMS memset;  // and a context
    cudaHostNodeParams host;
    struct {
      CUgraph graph;
      int ownership;
    } graph;
    CUevent event;  // to record, or to wait for
  };
  long long reserved2;
};

struct CUDA_GRAPH_INSTANTIATE_PARAMS {
  unsigned long long flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  int result_out;
};

}  // extern "C"

namespace vcuda::driver {

// Values of CUresult that differ from the runtime's values for the same error.
inline constexpr CUresult kSuccess = 0;
inline constexpr CUresult kInvalidValue = 1;
inline constexpr CUresult kOutOfMemory = 2;
inline constexpr CUresult kNotInitialized = 3;
inline constexpr CUresult kNoDevice = 100;
inline constexpr CUresult kInvalidDevice = 101;
inline constexpr CUresult kInvalidContext = 201;
inline constexpr CUresult kOperatingSystem = 304;
inline constexpr CUresult kNotFound = 500;
inline constexpr CUresult kNotPermitted = 800;
inline constexpr CUresult kNotSupported = 801;
inline constexpr CUresult kUnknown = 999;

}  // namespace vcuda::driver
