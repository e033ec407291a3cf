// Memory: allocation, copies, fills, attributes, sharing between processes.
#include <algorithm>
#include <cstring>

#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/tasks.h"
#include "vcuda/driver/context.h"
#include "vcuda/driver/pool.h"

namespace {

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)
using niccolite::gpu::PointerInfo;
using niccolite::gpu::virtual_::Access;
using niccolite::gpu::virtual_::AddressDescription;
using niccolite::gpu::virtual_::DriverCalls;

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr as_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult copy(void* target, const void* source, size_t bytes) {
  return in_context([&] { return of(cudaMemcpy(target, source, bytes, cudaMemcpyDefault)); });
}
CUresult copy_async(void* target, const void* source, size_t bytes, CUstream stream) {
  return in_context(
      [&] { return of(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream)); });
}

/// CU_MEMORYTYPE_HOST: memory of the host, or addressed like it.
constexpr int kMemoryTypeHost = 1;
constexpr int kMemoryTypeDevice = 2;
constexpr int kMemoryTypeArray = 3;

CUresult copy_2d(const CUDA_MEMCPY2D* rows, CUstream stream, bool waits) {
  if (rows == nullptr || rows->srcMemoryType == kMemoryTypeArray ||
      rows->dstMemoryType == kMemoryTypeArray)
    return kInvalidValue;
  const auto* source = rows->srcMemoryType == kMemoryTypeHost
                           ? static_cast<const char*>(rows->srcHost)
                           : static_cast<const char*>(as_pointer(rows->srcDevice));
  auto* target = rows->dstMemoryType == kMemoryTypeHost
                     ? static_cast<char*>(rows->dstHost)
                     : static_cast<char*>(as_pointer(rows->dstDevice));
  source += rows->srcY * rows->srcPitch + rows->srcXInBytes;
  target += rows->dstY * rows->dstPitch + rows->dstXInBytes;
  return in_context([&] {
    return of(waits
                  ? cudaMemcpy2D(target, rows->dstPitch, source, rows->srcPitch, rows->WidthInBytes,
                                 rows->Height, cudaMemcpyDefault)
                  : cudaMemcpy2DAsync(target, rows->dstPitch, source, rows->srcPitch,
                                      rows->WidthInBytes, rows->Height, cudaMemcpyDefault, stream));
  });
}

template <typename T>
CUresult fill(CUdeviceptr target, T value, size_t count, CUstream stream, bool waits) {
  return in_stream(stream, [&](int device, DriverCalls& calls) -> CUresult {
    if (target % sizeof(T) != 0) return kInvalidValue;
    return static_cast<CUresult>(
        calls.fill(device, stream, as_pointer(target), value, sizeof(T), count, waits));
  });
}

/// The allocation around an address. Errors: InvalidValue for memory that is none of a virtual
/// GPU's.
CUresult info_of(CUdeviceptr address, PointerInfo& info) {
  niccolite::gpu::virtual_::VirtualMachine* const gpus = machine();
  if (gpus == nullptr) return kNotInitialized;
  const niccolite::Result<PointerInfo> found = gpus->pointer_info(as_pointer(address));
  if (!found.is_ok() || found.value().kind == niccolite::gpu::PointerKind::Unknown)
    return kInvalidValue;
  info = found.value();
  return kSuccess;
}

/// Attributes of pointers, CU_POINTER_ATTRIBUTE_*.
enum PointerAttribute : int {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeSize = 12,
  kMapped = 13,
  kAllowedHandleTypes = 14,
  kIsRdmaCapable = 15,
  kAccessFlags = 16,
  kMempool = 17,
  kMappingSize = 18,
  kMappingBase = 19,
  kMemoryBlockId = 20,
};

/// An address of virtual memory management. False: it is none.
bool describe(CUdeviceptr address, AddressDescription& out) {
  niccolite::gpu::virtual_::VirtualMachine* const gpus = machine();
  return gpus != nullptr &&
         gpus->driver_calls().virtual_memory().describe(as_pointer(address), &out);
}
Access access_of(const AddressDescription& memory, int device) {
  for (const auto& one : memory.access)
    if (one.device == device) return one.access;
  return Access::None;
}
bool has_any_access(const AddressDescription& memory) {
  return std::any_of(memory.access.begin(), memory.access.end(),
                     [](const auto& one) { return one.access != Access::None; });
}

template <typename T>
CUresult give(void* data, const T& value) {
  std::memcpy(data, &value, sizeof(T));
  return kSuccess;
}
CUresult give_pointer(void* data, const void* pointer) {
  return give(data, reinterpret_cast<uintptr_t>(pointer));
}

// Answers the attributes of memory that the program mapped, if they differ from the ones of
// cuMemAlloc's memory. False: they do not.
bool mapped_attribute_of(void* data, int attribute, const AddressDescription& memory,
                         CUresult& result) {
  int current = -1;
  result = kSuccess;
  switch (attribute) {
    case kContext:
      result = give_pointer(data, nullptr);
      return true;
    case kDevicePointer:
      result = kInvalidValue;
      return !has_any_access(memory);
    case kIsLegacyIpcCapable:
      result = give(data, 0);
      return true;
    case kRangeStart:
      result = give_pointer(data, memory.reservation);
      return true;
    case kRangeSize:
      result = give(data, memory.reserved_bytes);
      return true;
    case kAllowedHandleTypes:
      result = give(data, uint64_t{memory.properties.is_exportable ? 1u : 0u});
      return true;
    case kIsRdmaCapable:
      result = give(data, memory.properties.is_rdma_capable ? 1 : 0);
      return true;
    case kAccessFlags:
      result = current_device(current);
      if (result == kSuccess) give(data, static_cast<int>(access_of(memory, current)));
      return true;
    case kMemoryBlockId:
      // Allocations are counted apart from other memory.
      result = give(data, uint64_t{1} << 63 | memory.allocation_id);
      return true;
    default:
      return false;
  }
}

CUresult attribute_of(void* data, int attribute, CUdeviceptr address) {
  cudaPointerAttributes of_runtime;
  if (const CUresult result = of(cudaPointerGetAttributes(&of_runtime, as_pointer(address)));
      result != kSuccess)
    return result;
  if (of_runtime.type == cudaMemoryTypeUnregistered) return kInvalidValue;
  const bool is_host = of_runtime.type == cudaMemoryTypeHost;
  PointerInfo info;
  if (const CUresult result = info_of(address, info); result != kSuccess) return result;
  AddressDescription mapped;
  CUresult of_mapped = kSuccess;
  if (describe(address, mapped) && mapped_attribute_of(data, attribute, mapped, of_mapped))
    return of_mapped;
  switch (attribute) {
    case kContext:
      return give_pointer(data, is_host ? nullptr : primary_context(of_runtime.device));
    case kMemoryType:
      return give(data, is_host ? kMemoryTypeHost : kMemoryTypeDevice);
    case kDevicePointer:
      return give(data, as_address(of_runtime.devicePointer));
    case kHostPointer:
      return of_runtime.hostPointer == nullptr ? kInvalidValue
                                               : give_pointer(data, of_runtime.hostPointer);
    case kIsManaged:
      return give(data, of_runtime.type == cudaMemoryTypeManaged ? 1 : 0);
    case kDeviceOrdinal:
      return give(data, of_runtime.device);
    case kIsLegacyIpcCapable:
      return give(data, of_runtime.type == cudaMemoryTypeDevice ? 1 : 0);
    case kBufferId:
      return give(data, info.id);
    case kRangeStart:
      return give_pointer(data, info.base);
    case kRangeSize:
      return give(data, info.bytes);
    case kMapped:
      return give(data, 1);
    case kAllowedHandleTypes:
      return give(data, uint64_t{is_exportable(pool_of(as_address(info.base))) ? 1u : 0u});
    case kMempool:
      return give_pointer(data, pool_of(as_address(info.base)));
    case kIsRdmaCapable:
      return give(data, 0);
    case kAccessFlags:
      return give(data, 3);
    case kMappingSize:
      return give(data, info.bytes);
    case kMappingBase:
      return give_pointer(data, info.base);
    case kMemoryBlockId:
      return give(data, info.id);
    default:
      return kInvalidValue;
  }
}

}  // namespace

extern "C" {

// ---- allocation

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return in_context([&] { return of(cudaMemGetInfo(free, total)); });
}
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return in_context([&] {
    if (address == nullptr || bytes == 0) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaMalloc(&pointer, bytes));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned int /*element_bytes*/) {
  return in_context([&] {
    if (address == nullptr) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaMallocPitch(&pointer, pitch, width, height));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  return in_context([&] {
    if (address == nullptr) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaMallocManaged(&pointer, bytes, flags));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  return in_context([&] {
    void* const pointer = as_pointer(address);
    return of(forget_allocation(address) ? cudaIpcCloseMemHandle(pointer) : cudaFree(pointer));
  });
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return in_context([&] {
    PointerInfo info;
    AddressDescription mapped;
    if (info_of(address, info) != kSuccess) return kNotFound;
    if (describe(address, mapped) && !has_any_access(mapped)) return kNotFound;
    if (base != nullptr) *base = as_address(info.base);
    if (bytes != nullptr) *bytes = info.bytes;
    return kSuccess;
  });
}
CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return in_context([&] { return of(cudaMallocHost(pointer, bytes)); });
}
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  return in_context([&] { return of(cudaHostAlloc(pointer, bytes, flags)); });
}
CUresult cuMemFreeHost(void* pointer) {
  return in_context([&] { return of(cudaFreeHost(pointer)); });
}
CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  return in_context([&] { return of(cudaHostRegister(pointer, bytes, flags)); });
}
CUresult cuMemHostUnregister(void* pointer) {
  return in_context([&] { return of(cudaHostUnregister(pointer)); });
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned int flags) {
  return in_context([&] {
    if (address == nullptr) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaHostGetDevicePointer(&pointer, host, flags));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  return in_context([&] {
    PointerInfo info;
    if (flags == nullptr || info_of(as_address(host), info) != kSuccess ||
        info.kind != niccolite::gpu::PointerKind::Host)
      return kInvalidValue;
    *flags = cudaHostAllocPortable | cudaHostAllocMapped;
    return kSuccess;
  });
}

// ---- copies and fills

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy(as_pointer(target), as_pointer(source), bytes);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
  return copy(as_pointer(target), source, bytes);
}
CUresult cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
  return copy(target, as_pointer(source), bytes);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy(as_pointer(target), as_pointer(source), bytes);
}
CUresult cuMemcpyPeer(CUdeviceptr target, CUcontext, CUdeviceptr source, CUcontext, size_t bytes) {
  return copy(as_pointer(target), as_pointer(source), bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_async(as_pointer(target), as_pointer(source), bytes, stream);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes,
                              CUstream stream) {
  return copy_async(as_pointer(target), source, bytes, stream);
}
CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_async(target, as_pointer(source), bytes, stream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
  return copy_async(as_pointer(target), as_pointer(source), bytes, stream);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext, CUdeviceptr source, CUcontext,
                           size_t bytes, CUstream stream) {
  return copy_async(as_pointer(target), as_pointer(source), bytes, stream);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* rows) { return copy_2d(rows, nullptr, true); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* rows) { return copy_2d(rows, nullptr, true); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* rows, CUstream stream) {
  return copy_2d(rows, stream, false);
}
CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
  return in_context([&] { return of(cudaMemset(as_pointer(target), value, count)); });
}
CUresult cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
  return fill<uint16_t>(target, value, count, nullptr, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned int value, size_t count) {
  return fill<uint32_t>(target, value, count, nullptr, true);
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  return in_context([&] { return of(cudaMemsetAsync(as_pointer(target), value, count, stream)); });
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
  return fill<uint16_t>(target, value, count, stream, false);
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned int value, size_t count, CUstream stream) {
  return fill<uint32_t>(target, value, count, stream, false);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream) {
  return in_context([&] {
    const cudaMemLocation where{static_cast<cudaMemLocationType>(location.type), location.id};
    return of(cudaMemPrefetchAsync(as_pointer(address), bytes, where, flags, stream));
  });
}

// ---- queries of pointers

// The answer about unknown memory is that nothing is known: no error, as with the driver.
CUresult cuPointerGetAttributes(unsigned int count, const int* attributes, void** data,
                                CUdeviceptr address) {
  if (!is_initialized()) return kNotInitialized;
  if (attributes == nullptr || data == nullptr) return kInvalidValue;
  for (unsigned int i = 0; i < count; ++i) {
    if (data[i] == nullptr) return kInvalidValue;
    if (attribute_of(data[i], attributes[i], address) == kSuccess) continue;
    AddressDescription reserved;
    if ((attributes[i] == kRangeStart || attributes[i] == kRangeSize) &&
        describe(address, reserved)) {
      give(data[i], attributes[i] == kRangeStart ? reinterpret_cast<uintptr_t>(reserved.reservation)
                                                 : reserved.reserved_bytes);
      continue;
    }
    const bool is_word = attributes[i] == kMemoryType || attributes[i] == kIsManaged ||
                         attributes[i] == kIsLegacyIpcCapable || attributes[i] == kMapped ||
                         attributes[i] == kIsRdmaCapable || attributes[i] == kAccessFlags;
    if (attributes[i] == kDeviceOrdinal) {
      give(data[i], -2);
    } else if (is_word) {
      give(data[i], 0);
    } else {
      give(data[i], uint64_t{0});
    }
  }
  return kSuccess;
}
CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr address) {
  if (!is_initialized()) return kNotInitialized;
  return data == nullptr ? kInvalidValue : attribute_of(data, attribute, address);
}
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies of virtual GPUs synchronise as it says.
CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr address) {
  constexpr int kSyncMemops = 6;
  PointerInfo info;
  if (value == nullptr || attribute != kSyncMemops) return kInvalidValue;
  return info_of(address, info);
}

// ---- other processes

CUresult cuIpcGetMemHandle(cudaIpcMemHandle_t* handle, CUdeviceptr address) {
  return in_context([&] { return of(cudaIpcGetMemHandle(handle, as_pointer(address))); });
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, cudaIpcMemHandle_t handle,
                               unsigned int flags) {
  return in_context([&] {
    if (address == nullptr) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaIpcOpenMemHandle(&pointer, handle, flags));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return in_context([&] { return of(cudaIpcCloseMemHandle(as_pointer(address))); });
}
CUresult cuIpcGetEventHandle(cudaIpcEventHandle_t* handle, CUevent event) {
  return in_context([&] { return of(cudaIpcGetEventHandle(handle, event)); });
}
CUresult cuIpcOpenEventHandle(CUevent* event, cudaIpcEventHandle_t handle) {
  return in_context([&] { return of(cudaIpcOpenEventHandle(event, handle)); });
}

}  // extern "C"
