// The part of the CUDA driver's ABI that Niccolite uses, declared here so that the library builds
// without the CUDA toolkit. Values and layouts are facts of the ABI (CUDA 12.0 and later);
// tests/device/driver_api_test.cc compares them with cuda.h if the toolkit is there. Who may use
// it: gpu/cuda and executor/cuda; cli/perf uses its types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::gpu::cuda {

using CuResult = int;
using CuDevice = int;
using CuPointer = unsigned long long;  // CUdeviceptr
using CuAllocation = unsigned long long;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuGraph = struct CuGraphObject*;
using CuGraphNode = struct CuGraphNodeObject*;
using CuGraphExec = struct CuGraphExecObject*;
using CuUserObject = struct CuUserObjectObject*;
using CuLibrary = struct CuLibraryObject*;
using CuKernel = struct CuKernelObject*;
using CuFunction = struct CuFunctionObject*;
using CuMemoryPool = struct CuMemoryPoolObject*;
using CuHostFunction = void (*)(void*);

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuInvalidValue = 1;
inline constexpr CuResult kCuDeinitialized = 4;
inline constexpr CuResult kCuInvalidContext = 201;
inline constexpr CuResult kCuIllegalState = 401;
inline constexpr CuResult kCuPeerAccessAlreadyEnabled = 704;
inline constexpr CuResult kCuNotReady = 600;
inline constexpr CuResult kCuStreamCaptureUnsupported = 900;

// CUdevice_attribute
inline constexpr int kCuMultiprocessorCount = 16;
inline constexpr int kCuComputeCapabilityMajor = 75;
inline constexpr int kCuMaxSharedMemoryPerBlockOptin = 97;
inline constexpr int kCuComputeCapabilityMinor = 76;
inline constexpr int kCuVirtualMemoryManagementSupported = 102;
inline constexpr int kCuGpuDirectRdmaWithVmmSupported = 110;
inline constexpr int kCuGpuDirectRdmaFlushWritesOptions = 117;
inline constexpr int kCuGpuDirectRdmaWritesOrdering = 118;
inline constexpr int kCuDmaBufSupported = 124;
inline constexpr int kCuMulticastSupported = 132;

// Memory that network adapters read and write: bits of an option, an ordering, a type, a target and
// a scope of the functions below
inline constexpr int kCuFlushWritesOptionHost = 1;
inline constexpr int kCuWritesOrderingOwner = 100;
inline constexpr int kCuRangeHandleDmaBufFd = 1;
inline constexpr int kCuFlushWritesTargetCurrentContext = 0;
inline constexpr int kCuFlushWritesToOwner = 100;

// CUdevice_P2PAttribute
inline constexpr int kCuP2pNativeAtomicSupported = 3;

// CUpointer_attribute
inline constexpr int kCuPointerContext = 1;
inline constexpr int kCuPointerMemoryType = 2;
inline constexpr int kCuPointerBufferId = 7;
inline constexpr int kCuPointerIsManaged = 8;
inline constexpr int kCuPointerDeviceOrdinal = 9;
inline constexpr int kCuPointerIsLegacyIpcCapable = 10;
inline constexpr int kCuPointerRangeStart = 11;
inline constexpr int kCuPointerRangeSize = 12;
inline constexpr int kCuPointerMemoryPool = 17;
inline constexpr int kCuPointerMappingSize = 18;
inline constexpr int kCuPointerMappingBase = 19;
// CUmemorytype
inline constexpr unsigned kCuMemoryTypeHost = 1;
inline constexpr unsigned kCuMemoryTypeDevice = 2;

inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuEventWaitExternal = 1;
inline constexpr unsigned kCuStreamAddCaptureDependencies = 0;
inline constexpr unsigned kCuHostAllocPortable = 1;
inline constexpr unsigned kCuHostAllocDeviceMap = 2;
inline constexpr unsigned kCuHostRegisterPortable = 1;
inline constexpr unsigned kCuHostRegisterDeviceMap = 2;

enum class CuCaptureMode : int { Global = 0, ThreadLocal = 1, Relaxed = 2 };
enum class CuCaptureStatus : int { None = 0, Active = 1, Invalidated = 2 };
inline constexpr unsigned kCuUserObjectNoDestructorSync = 1;
inline constexpr unsigned kCuGraphUserObjectMove = 1;

// Memory of other processes
inline constexpr unsigned kCuIpcLazyEnablePeerAccess = 1;
struct CuIpcHandle {
  char bytes[64];
};

// Virtual memory management
inline constexpr int kCuAllocationPinned = 1;
inline constexpr int kCuHandleNone = 0;
inline constexpr int kCuHandlePosixFd = 1;
inline constexpr int kCuLocationDevice = 1;
inline constexpr int kCuGranularityMinimum = 0;
inline constexpr int kCuGranularityRecommended = 1;
inline constexpr int kCuAccessReadWrite = 3;

struct CuLocation {
  int type;
  int id;
};
struct CuAllocationProperties {
  int type;
  int requested_handle_types;
  CuLocation location;
  void* win32_handle_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(CuAllocationProperties) == 32);
struct CuAccess {
  CuLocation location;
  int flags;
};
static_assert(sizeof(CuAccess) == 12);
struct CuMulticastProperties {  // CUmulticastObjectProp
  unsigned devices;
  size_t bytes;
  unsigned long long handle_types;
  unsigned long long flags;
};
static_assert(sizeof(CuMulticastProperties) == 32);
struct CuUuid {
  unsigned char bytes[16];
};

// Launches
inline constexpr int kCuLaunchProgrammaticStreamSerialization = 6;  // CUlaunchAttributeID
inline constexpr int kCuLaunchMemSyncDomain = 10;                   // the same
inline constexpr int kCuLaunchCompletionEvent = 12;  // the same; drivers from 12.3 on
inline constexpr int kCuMemSyncDomainRemote = 1;
inline constexpr int kCuFunctionMaxDynamicShared = 8;  // CUfunction_attribute
inline constexpr int kCuFunctionLocalBytes = 3;
inline constexpr int kCuFunctionRegisters = 4;
inline void* const kCuLaunchParameterEnd = nullptr;
inline void* const kCuLaunchParameterPointer = reinterpret_cast<void*>(1);
inline void* const kCuLaunchParameterSize = reinterpret_cast<void*>(2);

struct CuLaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int mem_sync_domain;
    int programmatic_stream_serialization;
    unsigned long long alignment;
    struct {
      void* event;  // CUevent
      int flags;
    } completion;
  } value;
};
static_assert(sizeof(CuLaunchAttribute) == 72);
struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CuLaunchConfig) == 56);

// X(function, CUDA version of its signature, parameters): every driver function in use.
#define NICCOLITE_CUDA_DRIVER_FUNCTIONS(X)                                                         \
  X(cuInit, 12000, (unsigned flags))                                                               \
  X(cuDriverGetVersion, 12000, (int* version))                                                     \
  X(cuGetErrorName, 12000, (CuResult result, const char** name))                                   \
  X(cuGetErrorString, 12000, (CuResult result, const char** text))                                 \
  X(cuDeviceGetCount, 12000, (int* count))                                                         \
  X(cuDeviceGet, 12000, (CuDevice * device, int ordinal))                                          \
  X(cuDeviceGetName, 12000, (char* name, int length, CuDevice device))                             \
  X(cuDeviceGetUuid, 12000, (CuUuid * uuid, CuDevice device))                                      \
  X(cuDeviceGetPCIBusId, 12000, (char* bus_id, int length, CuDevice device))                       \
  X(cuDeviceGetAttribute, 12000, (int* value, int attribute, CuDevice device))                     \
  X(cuDeviceTotalMem, 12000, (size_t * bytes, CuDevice device))                                    \
  X(cuDeviceCanAccessPeer, 12000, (int* can, CuDevice device, CuDevice peer))                      \
  X(cuDeviceGetP2PAttribute, 12000, (int* value, int attribute, CuDevice source, CuDevice target)) \
  X(cuDevicePrimaryCtxRetain, 12000, (CuContext * context, CuDevice device))                       \
  X(cuCtxGetCurrent, 12000, (CuContext * context))                                                 \
  X(cuCtxSetCurrent, 12000, (CuContext context))                                                   \
  X(cuCtxGetDevice, 12000, (CuDevice * device))                                                    \
  X(cuCtxEnablePeerAccess, 12000, (CuContext peer, unsigned flags))                                \
  X(cuCtxSynchronize, 12000, ())                                                                   \
  X(cuThreadExchangeStreamCaptureMode, 12000, (CuCaptureMode * mode))                              \
  X(cuMemGetAllocationGranularity, 12000,                                                          \
    (size_t * bytes, const CuAllocationProperties* properties, int option))                        \
  X(cuMemCreate, 12000,                                                                            \
    (CuAllocation * allocation, size_t bytes, const CuAllocationProperties* properties,            \
     unsigned long long flags))                                                                    \
  X(cuMemRelease, 12000, (CuAllocation allocation))                                                \
  X(cuMemAddressReserve, 12000,                                                                    \
    (CuPointer * address, size_t bytes, size_t alignment, CuPointer hint,                          \
     unsigned long long flags))                                                                    \
  X(cuMemAddressFree, 12000, (CuPointer address, size_t bytes))                                    \
  X(cuMemMap, 12000,                                                                               \
    (CuPointer address, size_t bytes, size_t offset, CuAllocation allocation,                      \
     unsigned long long flags))                                                                    \
  X(cuMemUnmap, 12000, (CuPointer address, size_t bytes))                                          \
  X(cuMemSetAccess, 12000,                                                                         \
    (CuPointer address, size_t bytes, const CuAccess* access, size_t count))                       \
  X(cuMemGetAccess, 12000,                                                                         \
    (unsigned long long* flags, const CuLocation* location, CuPointer pointer))                    \
  X(cuMemPoolGetAccess, 12000, (int* flags, CuMemoryPool pool, CuLocation* location))              \
  X(cuMemPoolSetAccess, 12000, (CuMemoryPool pool, const CuAccess* access, size_t count))          \
  X(cuMemPoolExportToShareableHandle, 12000,                                                       \
    (void* handle, CuMemoryPool pool, int type, unsigned long long flags))                         \
  X(cuMemPoolImportFromShareableHandle, 12000,                                                     \
    (CuMemoryPool * pool, void* handle, int type, unsigned long long flags))                       \
  X(cuMemPoolExportPointer, 12000, (void* name, CuPointer pointer))                                \
  X(cuMemPoolImportPointer, 12000, (CuPointer * pointer, CuMemoryPool pool, const void* name))     \
  X(cuMemPoolDestroy, 12000, (CuMemoryPool pool))                                                  \
  X(cuMemRetainAllocationHandle, 12000, (CuAllocation * allocation, void* address))                \
  X(cuMemExportToShareableHandle, 12000,                                                           \
    (void* handle, CuAllocation allocation, int type, unsigned long long flags))                   \
  X(cuMemImportFromShareableHandle, 12000, (CuAllocation * allocation, void* handle, int type))    \
  X(cuMemHostAlloc, 12000, (void** address, size_t bytes, unsigned flags))                         \
  X(cuMemFreeHost, 12000, (void* address))                                                         \
  X(cuMemHostRegister, 12000, (void* address, size_t bytes, unsigned flags))                       \
  X(cuMemHostUnregister, 12000, (void* address))                                                   \
  X(cuMemHostGetDevicePointer, 12000, (CuPointer * pointer, void* address, unsigned flags))        \
  X(cuMemGetInfo, 12000, (size_t * free_bytes, size_t * total_bytes))                              \
  X(cuMemAlloc, 12000, (CuPointer * address, size_t bytes))                                        \
  X(cuMemFree, 12000, (CuPointer address))                                                         \
  X(cuIpcGetMemHandle, 12000, (CuIpcHandle * handle, CuPointer pointer))                           \
  X(cuIpcOpenMemHandle, 12000, (CuPointer * pointer, CuIpcHandle handle, unsigned flags))          \
  X(cuIpcCloseMemHandle, 12000, (CuPointer pointer))                                               \
  X(cuPointerGetAttributes, 12000,                                                                 \
    (unsigned count, const int* attributes, void** data, CuPointer pointer))                       \
  X(cuMemcpyAsync, 12000, (CuPointer target, CuPointer source, size_t bytes, CuStream stream))     \
  X(cuMemsetD8Async, 12000,                                                                        \
    (CuPointer target, unsigned char value, size_t bytes, CuStream stream))                        \
  X(cuStreamCreate, 12000, (CuStream * stream, unsigned flags))                                    \
  X(cuStreamDestroy, 12000, (CuStream stream))                                                     \
  X(cuStreamGetCtx, 12000, (CuStream stream, CuContext * context))                                 \
  X(cuStreamGetId, 12000, (CuStream stream, unsigned long long* id))                               \
  X(cuStreamSynchronize, 12000, (CuStream stream))                                                 \
  X(cuStreamQuery, 12000, (CuStream stream))                                                       \
  X(cuStreamWaitEvent, 12000, (CuStream stream, CuEvent event, unsigned flags))                    \
  X(cuLaunchHostFunc, 12000, (CuStream stream, CuHostFunction function, void* data))               \
  X(cuEventCreate, 12000, (CuEvent * event, unsigned flags))                                       \
  X(cuEventDestroy, 12000, (CuEvent event))                                                        \
  X(cuEventRecord, 12000, (CuEvent event, CuStream stream))                                        \
  X(cuEventQuery, 12000, (CuEvent event))                                                          \
  X(cuEventSynchronize, 12000, (CuEvent event))                                                    \
  X(cuEventElapsedTime, 12000, (float* milliseconds, CuEvent start, CuEvent stop))                 \
  X(cuStreamBeginCapture, 12000, (CuStream stream, CuCaptureMode mode))                            \
  X(cuStreamEndCapture, 12000, (CuStream stream, CuGraph * graph))                                 \
  X(cuStreamGetCaptureInfo, 12000,                                                                 \
    (CuStream stream, CuCaptureStatus * status, unsigned long long* id, CuGraph* graph,            \
     const CuGraphNode** dependencies, size_t* dependency_count))                                  \
  X(cuStreamUpdateCaptureDependencies, 12000,                                                      \
    (CuStream stream, CuGraphNode * dependencies, size_t count, unsigned flags))                   \
  X(cuGraphAddEventRecordNode, 12000,                                                              \
    (CuGraphNode * node, CuGraph graph, const CuGraphNode* dependencies, size_t count,             \
     CuEvent event))                                                                               \
  X(cuGraphAddDependencies, 12000,                                                                 \
    (CuGraph graph, const CuGraphNode* from, const CuGraphNode* to, size_t count))                 \
  X(cuGraphRemoveDependencies, 12000,                                                              \
    (CuGraph graph, const CuGraphNode* from, const CuGraphNode* to, size_t count))                 \
  X(cuGraphInstantiateWithFlags, 12000,                                                            \
    (CuGraphExec * executable, CuGraph graph, unsigned long long flags))                           \
  X(cuGraphLaunch, 12000, (CuGraphExec executable, CuStream stream))                               \
  X(cuGraphDestroy, 12000, (CuGraph graph))                                                        \
  X(cuGraphExecDestroy, 12000, (CuGraphExec executable))                                           \
  X(cuUserObjectCreate, 12000,                                                                     \
    (CuUserObject * object, void* data, CuHostFunction destroy, unsigned references,               \
     unsigned flags))                                                                              \
  X(cuUserObjectRelease, 12000, (CuUserObject object, unsigned count))                             \
  X(cuGraphRetainUserObject, 12000,                                                                \
    (CuGraph graph, CuUserObject object, unsigned count, unsigned flags))                          \
  X(cuLibraryLoadData, 12000,                                                                      \
    (CuLibrary * library, const void* code, int* jit_options, void** jit_values,                   \
     unsigned jit_count, int* options, void** values, unsigned count))                             \
  X(cuLibraryGetKernel, 12000, (CuKernel * kernel, CuLibrary library, const char* name))           \
  X(cuKernelGetFunction, 12000, (CuFunction * function, CuKernel kernel))                          \
  X(cuFuncGetAttribute, 12000, (int* value, int attribute, CuFunction function))                   \
  X(cuFuncSetAttribute, 12000, (CuFunction function, int attribute, int value))                    \
  X(cuLaunchKernelEx, 12000,                                                                       \
    (const CuLaunchConfig* config, CuFunction function, void** parameters, void** extra))

// Functions that older drivers lack, in the same form; their pointers are then null.
#define NICCOLITE_CUDA_OPTIONAL_FUNCTIONS(X)                                                    \
  X(cuFuncLoad, 12040, (CuFunction function))                                                   \
  X(cuMemGetHandleForAddressRange, 12000,                                                       \
    (void* handle, CuPointer memory, size_t bytes, int type, unsigned long long flags))         \
  X(cuFlushGPUDirectRDMAWrites, 12000, (int target, int scope))                                 \
  X(cuCtxRecordEvent, 12050, (CuContext context, CuEvent event))                                \
  X(cuMulticastGetGranularity, 12010,                                                           \
    (size_t * granularity, const CuMulticastProperties* properties, int option))                \
  X(cuMulticastCreate, 12010, (CuAllocation * object, const CuMulticastProperties* properties)) \
  X(cuMulticastAddDevice, 12010, (CuAllocation object, CuDevice device))                        \
  X(cuMulticastBindAddr, 12010,                                                                 \
    (CuAllocation object, size_t offset, CuPointer memory, size_t bytes,                        \
     unsigned long long flags))                                                                 \
  X(cuMulticastUnbind, 12010, (CuAllocation object, CuDevice device, size_t offset, size_t bytes))

}  // namespace niccolite::gpu::cuda
