// Memory: allocation, pools, copies, fills, attributes, sharing between processes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "gpu/virtual/tasks.h"
#include "vcuda/driver/context.h"

// The runtime's library has the virtual GPUs.
extern "C" niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(int);

// A pool is a device to allocate on: memory is given back at once, so that there is nothing to
// keep, to trim or to share.
struct CUmemPoolHandle_st {
  int device = 0;
  unsigned long long release_threshold = 0;
};

namespace {

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)
using niccolite::gpu::PointerInfo;

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr as_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult copy(void* target, const void* source, size_t bytes) {
  return in_context([&] { return of(cudaMemcpy(target, source, bytes, cudaMemcpyDefault)); });
}
CUresult copy_async(void* target, const void* source, size_t bytes, CUstream stream) {
  return in_context(
      [&] { return of(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream)); });
}

/// What lies in host memory (CU_MEMORYTYPE_HOST) or is addressed like it.
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

/// Elements of two or four bytes, which the host stores in the stream's order: virtual GPUs' memory
/// is the host's.
template <typename T>
struct Fill {
  T* target;
  T value;
  size_t count;

  static void run(void* fill) {
    const std::unique_ptr<Fill> self(static_cast<Fill*>(fill));
    std::fill_n(self->target, self->count, self->value);
  }
};

template <typename T>
CUresult fill_async(CUdeviceptr target, T value, size_t count, CUstream stream) {
  return in_context([&]() -> CUresult {
    if (target % sizeof(T) != 0) return kInvalidValue;
    const auto low = static_cast<unsigned char>(value);
    T repeated = 0;
    std::memset(&repeated, low, sizeof repeated);
    if (repeated == value)
      return of(cudaMemsetAsync(as_pointer(target), low, count * sizeof(T), stream));
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, as_pointer(target)) != cudaSuccess ||
        attributes.type == cudaMemoryTypeUnregistered)
      return kInvalidValue;
    auto fill =
        std::make_unique<Fill<T>>(Fill<T>{static_cast<T*>(as_pointer(target)), value, count});
    const CUresult queued = of(cudaLaunchHostFunc(stream, Fill<T>::run, fill.get()));
    if (queued == kSuccess) static_cast<void>(fill.release());  // the stream's, from now on
    return queued;
  });
}
template <typename T>
CUresult fill(CUdeviceptr target, T value, size_t count) {
  const CUresult queued = fill_async(target, value, count, nullptr);
  return queued == kSuccess ? of(cudaStreamSynchronize(nullptr)) : queued;
}

struct Pools {
  std::mutex mutex;
  std::set<CUmemoryPool> made;
  std::vector<CUmemoryPool> defaults;  // by device

  static Pools& instance() {
    static Pools* const pools = new Pools;
    return *pools;
  }
  CUmemoryPool default_of(int device) {
    std::lock_guard lock(mutex);
    if (static_cast<size_t>(device) >= defaults.size())
      defaults.resize(static_cast<size_t>(device) + 1);
    CUmemoryPool& pool = defaults[static_cast<size_t>(device)];
    if (pool == nullptr) pool = new CUmemPoolHandle_st{.device = device};
    return pool;
  }
  bool is_known(CUmemoryPool pool) {
    std::lock_guard lock(mutex);
    return made.contains(pool) ||
           std::find(defaults.begin(), defaults.end(), pool) != defaults.end();
  }
};

/// The allocation around an address. Errors: InvalidValue for memory that is none of a virtual
/// GPU's.
CUresult info_of(CUdeviceptr address, PointerInfo& info) {
  niccolite::gpu::virtual_::VirtualMachine* const machine =
      niccolite_virtual_driver(niccolite::gpu::virtual_::kInterfaceVersion);
  if (machine == nullptr) return kNotInitialized;
  const niccolite::Result<PointerInfo> found = machine->pointer_info(as_pointer(address));
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
  kMempool = 17,
};

template <typename T>
CUresult give(void* data, const T& value) {
  std::memcpy(data, &value, sizeof(T));
  return kSuccess;
}
CUresult give_pointer(void* data, const void* pointer) {
  return give(data, reinterpret_cast<uintptr_t>(pointer));
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
      return give(data, uint64_t{0});
    case kMempool:
      return give_pointer(data, nullptr);
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
  return in_context([&] { return of(cudaFree(as_pointer(address))); });
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return in_context([&] {
    PointerInfo info;
    if (info_of(address, info) != kSuccess) return kNotFound;
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

// ---- pools

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  int count = 0;
  if (!is_initialized()) return kNotInitialized;
  if (cudaGetDeviceCount(&count) != cudaSuccess || device < 0 || device >= count)
    return kInvalidDevice;
  if (pool == nullptr) return kInvalidValue;
  *pool = Pools::instance().default_of(device);
  return kSuccess;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return cuDeviceGetDefaultMemPool(pool, device);
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  if (!Pools::instance().is_known(pool) || pool->device != device) return kInvalidValue;
  return kSuccess;  // all pools of a device are alike
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  constexpr int kPinned = 1, kOnDevice = 1;
  if (!is_initialized()) return kNotInitialized;
  if (pool == nullptr || properties == nullptr || properties->allocType != kPinned)
    return kInvalidValue;
  if (properties->location.type != kOnDevice || properties->handleTypes != 0) return kNotSupported;
  auto* const made = new CUmemPoolHandle_st{.device = properties->location.id};
  Pools& pools = Pools::instance();
  std::lock_guard lock(pools.mutex);
  pools.made.insert(made);
  *pool = made;
  return kSuccess;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  Pools& pools = Pools::instance();
  std::lock_guard lock(pools.mutex);
  if (pools.made.erase(pool) == 0) return kInvalidValue;
  delete pool;
  return kSuccess;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t /*keep*/) {
  return Pools::instance().is_known(pool) ? kSuccess : kInvalidValue;
}
// CU_MEMPOOL_ATTR_*: the first three are switches, of what virtual GPUs do anyway; the fourth the
// threshold; the others tell of memory, of which a pool keeps none.
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  constexpr int kThreshold = 4, kLast = 8;
  if (!Pools::instance().is_known(pool) || value == nullptr || attribute < 1 || attribute > kLast)
    return kInvalidValue;
  if (attribute == kThreshold) std::memcpy(&pool->release_threshold, value, sizeof(uint64_t));
  return kSuccess;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  constexpr int kLastSwitch = 3, kThreshold = 4;
  if (!Pools::instance().is_known(pool) || value == nullptr || attribute < 1) return kInvalidValue;
  if (attribute <= kLastSwitch) return give(value, 1);
  return give(value, attribute == kThreshold ? uint64_t{pool->release_threshold} : uint64_t{0});
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* /*of*/, size_t /*count*/) {
  return Pools::instance().is_known(pool) ? kSuccess : kInvalidValue;  // all devices see all memory
}
CUresult cuMemPoolGetAccess(int* flags, CUmemoryPool pool, CUmemLocation* /*of*/) {
  constexpr int kReadsAndWrites = 3;
  if (flags == nullptr || !Pools::instance().is_known(pool)) return kInvalidValue;
  *flags = kReadsAndWrites;
  return kSuccess;
}
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return in_context([&] {
    if (address == nullptr) return kInvalidValue;
    void* pointer = nullptr;
    const CUresult result = of(cudaMallocAsync(&pointer, bytes, stream));
    *address = as_address(pointer);
    return result;
  });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  if (!Pools::instance().is_known(pool)) return kInvalidValue;
  return cuMemAllocAsync(address, bytes, stream);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return in_context([&] { return of(cudaFreeAsync(as_pointer(address), stream)); });
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
  return fill<uint16_t>(target, value, count);
}
CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned int value, size_t count) {
  return fill<uint32_t>(target, value, count);
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  return in_context([&] { return of(cudaMemsetAsync(as_pointer(target), value, count, stream)); });
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
  return fill_async<uint16_t>(target, value, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned int value, size_t count, CUstream stream) {
  return fill_async<uint32_t>(target, value, count, stream);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream) {
  return in_context([&] {
    const cudaMemLocation where{static_cast<cudaMemLocationType>(location.type), location.id};
    return of(cudaMemPrefetchAsync(as_pointer(address), bytes, where, flags, stream));
  });
}

// ---- what a pointer is

// As the driver's: of memory that it does not know, nothing is known, which is no error.
CUresult cuPointerGetAttributes(unsigned int count, const int* attributes, void** data,
                                CUdeviceptr address) {
  if (!is_initialized()) return kNotInitialized;
  if (attributes == nullptr || data == nullptr) return kInvalidValue;
  for (unsigned int i = 0; i < count; ++i) {
    if (data[i] == nullptr) return kInvalidValue;
    if (attribute_of(data[i], attributes[i], address) == kSuccess) continue;
    const bool is_word = attributes[i] == kMemoryType || attributes[i] == kIsManaged ||
                         attributes[i] == kIsLegacyIpcCapable || attributes[i] == kMapped;
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
