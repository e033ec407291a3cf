// A CUDA driver that does nothing: libcuda.so.1 as far as Niccolite uses it
// (gpu/cuda/driver_api.h), of two devices whose memory is the host's. Launches, events and copies
// between streams return at once, so that what a program measures on it is the time of the library
// above. Two processes see each other's allocations as addresses that nobody may touch. Captures
// and graphs are refused. For bench/host_time alone: no result of an operation comes to be.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string_view>

#include "gpu/cuda/driver_api.h"

using namespace niccolite::gpu::cuda;

namespace {

constexpr int kDevices = 2;
constexpr size_t kGranularity = size_t{2} << 20;
constexpr CuResult kNotSupported = 801;
constexpr CuResult kOutOfMemory = 2;

/// Handles are numbers that nobody looks behind.
template <typename Handle>
Handle handle_of(uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

uintptr_t next_number() {
  static std::atomic<uintptr_t> next{0x1000};
  return next.fetch_add(8, std::memory_order_relaxed);
}

/// Zeroed pages, which cost nothing before they are touched.
void* pages(size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

struct Allocation {
  size_t bytes = 0;
  int device = 0;
  uint64_t id = 0;
};

class Memory {
 public:
  static Memory& instance() {
    static Memory* const memory = new Memory;
    return *memory;
  }
  void add(uintptr_t address, Allocation allocation) {
    std::lock_guard lock(mutex_);
    allocation.id = ++last_id_;
    allocations_[address] = allocation;
  }
  Allocation take(uintptr_t address) {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return {};
    const Allocation allocation = found->second;
    allocations_.erase(found);
    return allocation;
  }
  /// The allocation around an address, of 0 bytes if there is none.
  std::pair<uintptr_t, Allocation> around(uintptr_t address) {
    std::lock_guard lock(mutex_);
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return {};
    --after;
    if (address - after->first >= after->second.bytes) return {};
    return *after;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, Allocation> allocations_;
  uint64_t last_id_ = 0;
};

thread_local CuContext current_context = nullptr;

CuContext context_of(CuDevice device) {
  return handle_of<CuContext>(0x100 + static_cast<uintptr_t>(device));
}
CuDevice device_of(CuContext context) {
  return static_cast<CuDevice>(reinterpret_cast<uintptr_t>(context) - 0x100);
}

}  // namespace

namespace niccolite::idle_driver {

CuResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return kCuSuccess;
}
CuResult cuGetErrorName(CuResult /*result*/, const char** name) {
  *name = "refused by the idle driver";
  return kCuSuccess;
}
CuResult cuGetErrorString(CuResult result, const char** text) {
  return cuGetErrorName(result, text);
}
CuResult cuDeviceGetCount(int* count) {
  *count = kDevices;
  return kCuSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  *device = ordinal;
  return kCuSuccess;
}
CuResult cuDeviceGetName(char* name, int length, CuDevice /*device*/) {
  strncpy(name, "idle", static_cast<size_t>(length));
  return kCuSuccess;
}
CuResult cuDeviceGetUuid(CuUuid* uuid, CuDevice device) {
  *uuid = {};
  uuid->bytes[0] = static_cast<unsigned char>(device + 1);
  return kCuSuccess;
}
CuResult cuDeviceGetPCIBusId(char* bus_id, int length, CuDevice device) {
  strncpy(bus_id, device == 0 ? "0000:01:00.0" : "0000:02:00.0", static_cast<size_t>(length));
  return kCuSuccess;
}
CuResult cuDeviceGetAttribute(int* value, int attribute, CuDevice /*device*/) {
  switch (attribute) {  // an H100's
    case kCuMultiprocessorCount:
      *value = 132;
      return kCuSuccess;
    case kCuComputeCapabilityMajor:
      *value = 9;
      return kCuSuccess;
    case kCuMaxSharedMemoryPerBlockOptin:
      *value = 232448;
      return kCuSuccess;
    case kCuVirtualMemoryManagementSupported:
      *value = 1;
      return kCuSuccess;
    default:
      *value = 0;
      return kCuSuccess;
  }
}
CuResult cuDeviceTotalMem(size_t* bytes, CuDevice /*device*/) {
  *bytes = size_t{80} << 30;
  return kCuSuccess;
}
CuResult cuDeviceCanAccessPeer(int* can, CuDevice /*device*/, CuDevice /*peer*/) {
  *can = 1;
  return kCuSuccess;
}
CuResult cuDeviceGetP2PAttribute(int* value, int /*attribute*/, CuDevice /*source*/,
                                 CuDevice /*target*/) {
  *value = 1;
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  *context = context_of(device);
  return kCuSuccess;
}
CuResult cuCtxGetCurrent(CuContext* context) {
  *context = current_context;
  return kCuSuccess;
}
CuResult cuCtxSetCurrent(CuContext context) {
  current_context = context;
  return kCuSuccess;
}
CuResult cuCtxGetDevice(CuDevice* device) {
  if (current_context == nullptr) return kCuInvalidContext;
  *device = device_of(current_context);
  return kCuSuccess;
}

CuResult cuMemGetAllocationGranularity(size_t* bytes, const CuAllocationProperties* /*of*/,
                                       int /*option*/) {
  *bytes = kGranularity;
  return kCuSuccess;
}
CuResult cuMemCreate(CuAllocation* allocation, size_t /*bytes*/,
                     const CuAllocationProperties* /*properties*/, unsigned long long /*flags*/) {
  *allocation = next_number();
  return kCuSuccess;
}
CuResult cuMemAddressReserve(CuPointer* address, size_t bytes, size_t /*alignment*/,
                             CuPointer /*hint*/, unsigned long long /*flags*/) {
  void* const made = pages(bytes);
  if (made == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<CuPointer>(made);
  return kCuSuccess;
}
CuResult cuMemAddressFree(CuPointer address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return kCuSuccess;
}
CuResult cuMemRetainAllocationHandle(CuAllocation* /*allocation*/, void* /*address*/) {
  return kCuInvalidValue;  // programs have memory of cuMemAlloc alone
}
CuResult cuMemExportToShareableHandle(void* handle, CuAllocation /*allocation*/, int /*type*/,
                                      unsigned long long /*flags*/) {
  const int fd = memfd_create("idle", MFD_CLOEXEC);
  *static_cast<int*>(handle) = fd;
  return fd < 0 ? kOutOfMemory : kCuSuccess;
}
CuResult cuMemImportFromShareableHandle(CuAllocation* allocation, void* /*handle*/, int /*type*/) {
  *allocation = next_number();
  return kCuSuccess;
}
CuResult cuMemHostAlloc(void** address, size_t bytes, unsigned /*flags*/) {
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *address == nullptr ? kOutOfMemory : kCuSuccess;
}
CuResult cuMemFreeHost(void* address) {
  std::free(address);
  return kCuSuccess;
}
CuResult cuMemAlloc(CuPointer* address, size_t bytes) {
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  void* const made = pages(bytes);
  if (made == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<CuPointer>(made);
  Memory::instance().add(*address, {.bytes = bytes, .device = device_of(current_context), .id = 0});
  return kCuSuccess;
}
CuResult cuMemFree(CuPointer address) {
  const Allocation allocation = Memory::instance().take(address);
  if (allocation.bytes == 0) return kCuInvalidValue;
  munmap(reinterpret_cast<void*>(address), allocation.bytes);
  return kCuSuccess;
}
CuResult cuIpcGetMemHandle(CuIpcHandle* handle, CuPointer pointer) {
  *handle = {};
  std::memcpy(handle->bytes, &pointer, sizeof pointer);
  return kCuSuccess;
}
CuResult cuIpcOpenMemHandle(CuPointer* pointer, CuIpcHandle /*handle*/, unsigned /*flags*/) {
  *pointer = next_number() << 20;
  return kCuSuccess;
}
CuResult cuPointerGetAttributes(unsigned count, const int* attributes, void** data,
                                CuPointer pointer) {
  const auto [base, allocation] = Memory::instance().around(pointer);
  const bool is_known = allocation.bytes > 0;
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case kCuPointerContext:
        *static_cast<CuContext*>(data[i]) = is_known ? context_of(allocation.device) : nullptr;
        break;
      case kCuPointerMemoryType:
        *static_cast<unsigned*>(data[i]) = is_known ? kCuMemoryTypeDevice : 0;
        break;
      case kCuPointerDeviceOrdinal:
        *static_cast<int*>(data[i]) = allocation.device;
        break;
      case kCuPointerBufferId:
        *static_cast<unsigned long long*>(data[i]) = allocation.id;
        break;
      case kCuPointerIsManaged:
        *static_cast<unsigned*>(data[i]) = 0;
        break;
      case kCuPointerIsLegacyIpcCapable:
        *static_cast<unsigned*>(data[i]) = 1;
        break;
      case kCuPointerRangeStart:
      case kCuPointerMappingBase:
        *static_cast<CuPointer*>(data[i]) = base;
        break;
      case kCuPointerRangeSize:
      case kCuPointerMappingSize:
        *static_cast<size_t*>(data[i]) = allocation.bytes;
        break;
      default:
        return kCuInvalidValue;
    }
  }
  return kCuSuccess;
}
CuResult cuMemcpyAsync(CuPointer target, CuPointer source, size_t bytes, CuStream /*stream*/) {
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
  return kCuSuccess;
}

CuResult cuStreamCreate(CuStream* stream, unsigned /*flags*/) {
  *stream = handle_of<CuStream>(next_number());
  return kCuSuccess;
}
CuResult cuStreamGetCtx(CuStream /*stream*/, CuContext* context) {
  *context = current_context == nullptr ? context_of(0) : current_context;
  return kCuSuccess;
}
CuResult cuStreamGetId(CuStream stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream);
  return kCuSuccess;
}
CuResult cuLaunchHostFunc(CuStream /*stream*/, CuHostFunction function, void* data) {
  function(data);
  return kCuSuccess;
}
CuResult cuEventCreate(CuEvent* event, unsigned /*flags*/) {
  *event = handle_of<CuEvent>(next_number());
  return kCuSuccess;
}
CuResult cuEventElapsedTime(float* milliseconds, CuEvent /*start*/, CuEvent /*stop*/) {
  *milliseconds = 0;
  return kCuSuccess;
}
CuResult cuStreamGetCaptureInfo(CuStream /*stream*/, CuCaptureStatus* status,
                                unsigned long long* /*id*/, CuGraph* /*graph*/,
                                const CuGraphNode** /*dependencies*/, size_t* /*count*/) {
  *status = CuCaptureStatus::None;
  return kCuSuccess;
}

CuResult cuLibraryLoadData(CuLibrary* library, const void* /*code*/, int* /*jit_options*/,
                           void** /*jit_values*/, unsigned /*jit_count*/, int* /*options*/,
                           void** /*values*/, unsigned /*count*/) {
  *library = handle_of<CuLibrary>(next_number());
  return kCuSuccess;
}
CuResult cuLibraryGetKernel(CuKernel* kernel, CuLibrary /*library*/, const char* /*name*/) {
  *kernel = handle_of<CuKernel>(next_number());
  return kCuSuccess;
}
CuResult cuKernelGetFunction(CuFunction* function, CuKernel kernel) {
  *function = handle_of<CuFunction>(reinterpret_cast<uintptr_t>(kernel));
  return kCuSuccess;
}
CuResult cuFuncGetAttribute(int* value, int /*attribute*/, CuFunction /*function*/) {
  *value = 0;
  return kCuSuccess;
}

CuResult nothing() { return kCuSuccess; }
CuResult refuse() { return kNotSupported; }

}  // namespace niccolite::idle_driver

namespace {

using Function = CuResult (*)();

struct Entry {
  std::string_view name;
  Function function;
};

template <typename Any>
Function erased(Any* function) {
  return reinterpret_cast<Function>(reinterpret_cast<void*>(function));
}

#define DOES(name) \
  Entry { #name, erased(niccolite::idle_driver::name) }
// Functions whose whole answer is success: no caller looks at anything else of theirs.
#define DOES_NOTHING(name) \
  Entry { #name, erased(niccolite::idle_driver::nothing) }

const Entry* find(std::string_view name) {
  static const Entry entries[] = {
      DOES(cuDriverGetVersion),
      DOES(cuGetErrorName),
      DOES(cuGetErrorString),
      DOES(cuDeviceGetCount),
      DOES(cuDeviceGet),
      DOES(cuDeviceGetName),
      DOES(cuDeviceGetUuid),
      DOES(cuDeviceGetPCIBusId),
      DOES(cuDeviceGetAttribute),
      DOES(cuDeviceTotalMem),
      DOES(cuDeviceCanAccessPeer),
      DOES(cuDeviceGetP2PAttribute),
      DOES(cuDevicePrimaryCtxRetain),
      DOES(cuCtxGetCurrent),
      DOES(cuCtxSetCurrent),
      DOES(cuCtxGetDevice),
      DOES(cuMemGetAllocationGranularity),
      DOES(cuMemCreate),
      DOES(cuMemAddressReserve),
      DOES(cuMemAddressFree),
      DOES(cuMemRetainAllocationHandle),
      DOES(cuMemExportToShareableHandle),
      DOES(cuMemImportFromShareableHandle),
      DOES(cuMemHostAlloc),
      DOES(cuMemFreeHost),
      DOES(cuMemAlloc),
      DOES(cuMemFree),
      DOES(cuIpcGetMemHandle),
      DOES(cuIpcOpenMemHandle),
      DOES(cuPointerGetAttributes),
      DOES(cuMemcpyAsync),
      DOES(cuStreamCreate),
      DOES(cuStreamGetCtx),
      DOES(cuStreamGetId),
      DOES(cuLaunchHostFunc),
      DOES(cuEventCreate),
      DOES(cuEventElapsedTime),
      DOES(cuStreamGetCaptureInfo),
      DOES(cuLibraryLoadData),
      DOES(cuLibraryGetKernel),
      DOES(cuKernelGetFunction),
      DOES(cuFuncGetAttribute),
      DOES_NOTHING(cuInit),
      DOES_NOTHING(cuCtxEnablePeerAccess),
      DOES_NOTHING(cuCtxSynchronize),
      DOES_NOTHING(cuThreadExchangeStreamCaptureMode),
      DOES_NOTHING(cuMemRelease),
      DOES_NOTHING(cuMemMap),
      DOES_NOTHING(cuMemUnmap),
      DOES_NOTHING(cuMemSetAccess),
      DOES_NOTHING(cuIpcCloseMemHandle),
      DOES_NOTHING(cuMemsetD8Async),  // of pages that are zero already
      DOES_NOTHING(cuStreamDestroy),
      DOES_NOTHING(cuStreamSynchronize),
      DOES_NOTHING(cuStreamQuery),
      DOES_NOTHING(cuStreamWaitEvent),
      DOES_NOTHING(cuEventDestroy),
      DOES_NOTHING(cuEventRecord),
      DOES_NOTHING(cuEventQuery),
      DOES_NOTHING(cuEventSynchronize),
      DOES_NOTHING(cuFuncSetAttribute),
      DOES_NOTHING(cuFuncLoad),
      DOES_NOTHING(cuLaunchKernelEx),
      DOES_NOTHING(cuCtxRecordEvent),
  };
  const Entry* const found = std::find_if(std::begin(entries), std::end(entries),
                                          [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(entries) ? nullptr : found;
}

}  // namespace

/// The one symbol: every other function is asked of this one, by its name.
extern "C" __attribute__((visibility("default"))) CuResult cuGetProcAddress_v2(
    const char* name, void** function, int /*version*/, unsigned long long /*flags*/, int* found) {
  const Entry* const entry = find(name);
  *function =
      reinterpret_cast<void*>(entry != nullptr ? entry->function : niccolite::idle_driver::refuse);
  *found = 0;
  return kCuSuccess;
}
