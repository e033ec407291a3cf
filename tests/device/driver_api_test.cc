// Holds our declarations of the CUDA driver's ABI against NVIDIA's own.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <gmock/gmock.h>

#include <type_traits>

#include "gpu/cuda/driver.h"
#include "gpu/cuda/open.h"
#include "gpu/machine.h"

namespace niccolite::gpu::cuda {
namespace {

static_assert(kCuSuccess == CUDA_SUCCESS && kCuInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kCuDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kCuInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kCuIllegalState == CUDA_ERROR_ILLEGAL_STATE);
static_assert(kCuNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCuStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

static_assert(kCuMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kCuComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kCuMaxSharedMemoryPerBlockOptin ==
              CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kCuComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kCuVirtualMemoryManagementSupported ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kCuGpuDirectRdmaWithVmmSupported ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);

static_assert(kCuGpuDirectRdmaFlushWritesOptions ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(kCuGpuDirectRdmaWritesOrdering ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(kCuDmaBufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(kCuFlushWritesOptionHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
static_assert(kCuWritesOrderingOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(kCuRangeHandleDmaBufFd == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
static_assert(kCuFlushWritesTargetCurrentContext ==
              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(kCuFlushWritesToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);

static_assert(kCuP2pNativeAtomicSupported == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);

static_assert(kCuPointerContext == CU_POINTER_ATTRIBUTE_CONTEXT);
static_assert(kCuPointerIsLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(kCuPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(kCuPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kCuPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(kCuPointerIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(kCuPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kCuPointerRangeStart == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(kCuPointerRangeSize == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(kCuMemoryTypeHost == CU_MEMORYTYPE_HOST);
static_assert(kCuMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);

static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCuEventWaitExternal == CU_EVENT_WAIT_EXTERNAL);
static_assert(kCuStreamAddCaptureDependencies == CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
static_assert(kCuHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kCuHostAllocDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kCuHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCuHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(static_cast<int>(CuCaptureMode::Global) == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(static_cast<int>(CuCaptureMode::ThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(CuCaptureMode::Relaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(static_cast<int>(CuCaptureStatus::Active) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(static_cast<int>(CuCaptureStatus::Invalidated) ==
              CU_STREAM_CAPTURE_STATUS_INVALIDATED);
static_assert(kCuUserObjectNoDestructorSync == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
static_assert(kCuGraphUserObjectMove == CU_GRAPH_USER_OBJECT_MOVE);

static_assert(kCuAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kCuHandleNone == CU_MEM_HANDLE_TYPE_NONE);
static_assert(kCuHandlePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kCuLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kCuGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kCuAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(sizeof(CuAllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(CuAllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(offsetof(CuAllocationProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(CuAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(CuAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(CuUuid) == sizeof(CUuuid));

static_assert(kCuLaunchProgrammaticStreamSerialization ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(kCuLaunchMemSyncDomain == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
static_assert(kCuMemSyncDomainRemote == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
static_assert(kCuFunctionMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kCuFunctionLocalBytes == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
static_assert(kCuFunctionRegisters == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(sizeof(CuLaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(CuLaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(CuLaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(CuLaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(CuLaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(CuLaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(CuLaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));

// Our types stand for NVIDIA's, which are others to the compiler: what can be compared is how many
// parameters there are and how each is passed.
template <typename Ours, typename Theirs>
struct PassedAlike
    : std::bool_constant<sizeof(Ours) == sizeof(Theirs) &&
                         std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                         std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>> {};
template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename... Ours, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<CuResult (*)(Ours...), CUresult (*)(Theirs...)>
    : std::conjunction<PassedAlike<Ours, Theirs>...> {
};

#define EXPECT_SAME(function, version)                                               \
  static_assert(SameCall<decltype(Driver::function), PFN_##function##_v##version>(), \
                #function " of CUDA " #version)
// The newest version of each signature that a driver gives to who asks for CUDA 12.0.
EXPECT_SAME(cuInit, 2000);
EXPECT_SAME(cuDriverGetVersion, 2020);
EXPECT_SAME(cuGetErrorName, 6000);
EXPECT_SAME(cuGetErrorString, 6000);
EXPECT_SAME(cuDeviceGetCount, 2000);
EXPECT_SAME(cuDeviceGet, 2000);
EXPECT_SAME(cuDeviceGetName, 2000);
EXPECT_SAME(cuDeviceGetUuid, 11040);
EXPECT_SAME(cuDeviceGetPCIBusId, 4010);
EXPECT_SAME(cuDeviceGetAttribute, 2000);
EXPECT_SAME(cuDeviceTotalMem, 3020);
EXPECT_SAME(cuDeviceCanAccessPeer, 4000);
EXPECT_SAME(cuDevicePrimaryCtxRetain, 7000);
EXPECT_SAME(cuCtxGetCurrent, 4000);
EXPECT_SAME(cuCtxSetCurrent, 4000);
EXPECT_SAME(cuCtxGetDevice, 2000);
EXPECT_SAME(cuCtxSynchronize, 2000);
EXPECT_SAME(cuThreadExchangeStreamCaptureMode, 10010);
EXPECT_SAME(cuMemGetAllocationGranularity, 10020);
EXPECT_SAME(cuMemCreate, 10020);
EXPECT_SAME(cuMemRelease, 10020);
EXPECT_SAME(cuMemAddressReserve, 10020);
EXPECT_SAME(cuMemAddressFree, 10020);
EXPECT_SAME(cuMemMap, 10020);
EXPECT_SAME(cuMemUnmap, 10020);
EXPECT_SAME(cuMemSetAccess, 10020);
EXPECT_SAME(cuMemRetainAllocationHandle, 11000);
EXPECT_SAME(cuMemExportToShareableHandle, 10020);
EXPECT_SAME(cuMemImportFromShareableHandle, 10020);
EXPECT_SAME(cuMemGetAccess, 10020);
EXPECT_SAME(cuMemPoolGetAccess, 11020);
EXPECT_SAME(cuMemPoolSetAccess, 11020);
EXPECT_SAME(cuMemPoolExportToShareableHandle, 11020);
EXPECT_SAME(cuMemPoolImportFromShareableHandle, 11020);
EXPECT_SAME(cuMemPoolExportPointer, 11020);
EXPECT_SAME(cuMemPoolImportPointer, 11020);
EXPECT_SAME(cuMemPoolDestroy, 11020);
EXPECT_SAME(cuMemGetInfo, 3020);
EXPECT_SAME(cuIpcGetMemHandle, 4010);
EXPECT_SAME(cuIpcOpenMemHandle, 11000);
EXPECT_SAME(cuIpcCloseMemHandle, 4010);
EXPECT_SAME(cuMemHostAlloc, 2020);
EXPECT_SAME(cuDeviceGetP2PAttribute, 8000);
EXPECT_SAME(cuMemAlloc, 3020);
EXPECT_SAME(cuMemFree, 3020);
EXPECT_SAME(cuCtxEnablePeerAccess, 4000);
EXPECT_SAME(cuMemFreeHost, 2000);
EXPECT_SAME(cuMemHostRegister, 6050);
EXPECT_SAME(cuMemHostUnregister, 4000);
EXPECT_SAME(cuMemHostGetDevicePointer, 3020);
EXPECT_SAME(cuPointerGetAttributes, 7000);
EXPECT_SAME(cuMemcpyAsync, 4000);
EXPECT_SAME(cuMemsetD8Async, 3020);
EXPECT_SAME(cuStreamCreate, 2000);
EXPECT_SAME(cuStreamDestroy, 4000);
EXPECT_SAME(cuStreamGetCtx, 9020);
EXPECT_SAME(cuStreamGetId, 12000);
EXPECT_SAME(cuStreamSynchronize, 2000);
EXPECT_SAME(cuStreamQuery, 2000);
EXPECT_SAME(cuStreamWaitEvent, 3020);
EXPECT_SAME(cuLaunchHostFunc, 10000);
EXPECT_SAME(cuEventCreate, 2000);
EXPECT_SAME(cuEventDestroy, 4000);
EXPECT_SAME(cuEventRecord, 2000);
EXPECT_SAME(cuEventQuery, 2000);
EXPECT_SAME(cuEventSynchronize, 2000);
EXPECT_SAME(cuEventElapsedTime, 2000);
EXPECT_SAME(cuStreamBeginCapture, 10010);
EXPECT_SAME(cuStreamEndCapture, 10000);
EXPECT_SAME(cuStreamGetCaptureInfo, 11030);
EXPECT_SAME(cuStreamUpdateCaptureDependencies, 11030);
EXPECT_SAME(cuGraphAddEventRecordNode, 11010);
EXPECT_SAME(cuGraphAddDependencies, 10000);
EXPECT_SAME(cuGraphRemoveDependencies, 10000);
EXPECT_SAME(cuGraphInstantiateWithFlags, 11040);
EXPECT_SAME(cuGraphLaunch, 10000);
EXPECT_SAME(cuGraphDestroy, 10000);
EXPECT_SAME(cuGraphExecDestroy, 10000);
EXPECT_SAME(cuUserObjectCreate, 11030);
EXPECT_SAME(cuUserObjectRelease, 11030);
EXPECT_SAME(cuGraphRetainUserObject, 11030);
EXPECT_SAME(cuLibraryLoadData, 12000);
EXPECT_SAME(cuLibraryGetKernel, 12000);
EXPECT_SAME(cuKernelGetFunction, 12000);
EXPECT_SAME(cuFuncGetAttribute, 2020);
EXPECT_SAME(cuFuncSetAttribute, 9000);
EXPECT_SAME(cuLaunchKernelEx, 11060);
EXPECT_SAME(cuFuncLoad, 12040);
EXPECT_SAME(cuCtxRecordEvent, 12050);
#undef EXPECT_SAME

// A thread may give memory back while the process ends.
TEST(CudaDriver, IsNotComplainedAboutOnceItHasEnded) {
  Driver driver;
  driver.cuGetErrorName = [](CuResult, const char**) { return kCuDeinitialized; };
  driver.cuGetErrorString = driver.cuGetErrorName;
  constexpr CuResult kOther = 999;
  const auto trial = [&] {
    log_failure(driver.check(kOther, "first"));
    log_failure(driver.check(kCuDeinitialized, "second"));
    log_failure(driver.check(kOther, "third"));
    std::exit(0);
  };
  using testing::HasSubstr, testing::Not;
  EXPECT_EXIT(
      trial(), testing::ExitedWithCode(0),
      testing::AllOf(HasSubstr("first"), Not(HasSubstr("second")), Not(HasSubstr("third"))));
}

TEST(CudaDriver, OpensOrSaysWhyNot) {
  const Result<Machine*> machine = open();
  if (machine.is_ok()) {
    EXPECT_GT(machine.value()->device_count(), 0);
    GTEST_SKIP() << "there is a CUDA driver here";
  }
  EXPECT_EQ(machine.status().code(), Code::CudaError);
  EXPECT_NE(machine.status().message(), "");
  EXPECT_EQ(open().status().message(), machine.status().message()) << "the same reason every time";
}

}  // namespace
}  // namespace niccolite::gpu::cuda
