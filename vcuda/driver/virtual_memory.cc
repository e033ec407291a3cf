// Virtual memory management: allocations without addresses, addresses without memory, mappings,
// multicast objects.
#include "gpu/virtual/virtual_memory.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/tasks.h"
#include "vcuda/driver/context.h"

namespace {

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)
using niccolite::gpu::virtual_::Access;
using niccolite::gpu::virtual_::AddressDescription;
using niccolite::gpu::virtual_::AllocationProperties;
using niccolite::gpu::virtual_::DeviceAccess;
using niccolite::gpu::virtual_::kAllocationGranularity;
using niccolite::gpu::virtual_::MulticastProperties;
using niccolite::gpu::virtual_::VirtualMemory;

// CU_MEM_ALLOCATION_TYPE_*, CU_MEM_LOCATION_TYPE_*, CU_MEM_HANDLE_TYPE_*.
constexpr int kPinned = 1;
constexpr int kOnDevice = 1;
constexpr int kOnHostLast = 4;  // 2 to 4: the host, and its NUMA nodes
constexpr int kFileDescriptor = 1;
constexpr int kFabric = 8;

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

/// Runs body(VirtualMemory&), which returns an Error or a CUresult; these calls need no context.
template <typename Body>
CUresult call(Body&& body) {
  if (!is_initialized()) return kNotInitialized;
  niccolite::gpu::virtual_::VirtualMachine* const found = machine();
  if (found == nullptr) return kNoDevice;
  try {
    return static_cast<CUresult>(body(found->driver_calls().virtual_memory()));
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

CUresult check(const CUmemAllocationProp& wanted) {
  if (wanted.type != kPinned) return kInvalidValue;
  if (wanted.location.type > kOnDevice && wanted.location.type <= kOnHostLast) return kNotSupported;
  if (wanted.location.type != kOnDevice) return kInvalidValue;
  if ((wanted.requestedHandleTypes & kFabric) != 0) return kNotPermitted;
  if ((wanted.requestedHandleTypes & ~kFileDescriptor) != 0) return kInvalidValue;
  return wanted.usage == 0 ? kSuccess : kNotSupported;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* wanted,
                                       int option) {
  constexpr int kRecommended = 1;  // 0: the least
  if (!is_initialized()) return kNotInitialized;
  if (granularity == nullptr || wanted == nullptr || option < 0 || option > kRecommended)
    return kInvalidValue;
  *granularity = kAllocationGranularity;
  return kSuccess;
}

// ---- allocations

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* wanted, unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (handle == nullptr || wanted == nullptr || flags != 0) return kInvalidValue;
    if (const CUresult result = check(*wanted); result != kSuccess) return result;
    const AllocationProperties properties{wanted->location.id, wanted->requestedHandleTypes != 0,
                                          wanted->gpuDirectRDMACapable != 0};
    return static_cast<CUresult>(memory.create(properties, bytes, handle));
  });
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call([&](VirtualMemory& memory) { return memory.release(handle); });
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (handle == nullptr) return kInvalidValue;
    return static_cast<CUresult>(memory.retain(address, handle));
  });
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out,
                                                CUmemGenericAllocationHandle handle) {
  return call([&](VirtualMemory& memory) -> CUresult {
    AllocationProperties found;
    if (out == nullptr) return kInvalidValue;
    const auto result = static_cast<CUresult>(memory.properties(handle, &found));
    if (result != kSuccess) return result;
    *out = {};
    out->type = kPinned;
    out->requestedHandleTypes = found.is_exportable ? kFileDescriptor : 0;
    out->location = {kOnDevice, found.device};
    out->gpuDirectRDMACapable = found.is_rdma_capable ? 1 : 0;
    return kSuccess;
  });
}
// The handle is an int, where `shareable` points to.
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      int type, unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (shareable == nullptr || type != kFileDescriptor || flags != 0) return kInvalidValue;
    return static_cast<CUresult>(memory.export_allocation(handle, static_cast<int*>(shareable)));
  });
}
// A file in the place of a dma-buf. It begins where its allocation does, so the range has to begin
// with a mapping.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, int type,
                                       unsigned long long flags) {
  constexpr int kDmaBuf = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
  return call([&](VirtualMemory& memory) -> CUresult {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (handle == nullptr || type != kDmaBuf || flags != 0 || bytes == 0 || address % page != 0 ||
        bytes % page != 0)
      return kInvalidValue;
    AddressDescription found;
    if (!memory.describe(as_pointer(address), &found) || found.mapping != as_pointer(address))
      return kNotSupported;
    if (bytes > found.mapped_bytes) return kInvalidValue;
    CUmemGenericAllocationHandle allocation = 0;
    auto result = static_cast<CUresult>(memory.retain(as_pointer(address), &allocation));
    if (result != kSuccess) return result;
    result = static_cast<CUresult>(memory.export_allocation(allocation, static_cast<int*>(handle)));
    static_cast<void>(memory.release(allocation));
    return result == kSuccess ? kSuccess : kNotSupported;
  });
}
// Here the descriptor is the pointer's value.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        int type) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (handle == nullptr || type != kFileDescriptor) return kInvalidValue;
    const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    return static_cast<CUresult>(memory.import_allocation(descriptor, handle));
  });
}

// ---- multicast objects

CUresult cuMulticastGetGranularity(size_t* granularity, const CUmulticastObjectProp* wanted,
                                   int option) {
  constexpr int kRecommended = 1;  // 0: the least
  if (!is_initialized()) return kNotInitialized;
  if (granularity == nullptr || wanted == nullptr || option < 0 || option > kRecommended)
    return kInvalidValue;
  *granularity = kAllocationGranularity;
  return kSuccess;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle,
                           const CUmulticastObjectProp* wanted) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (handle == nullptr || wanted == nullptr || wanted->flags != 0) return kInvalidValue;
    if ((wanted->handleTypes & kFabric) != 0) return kNotPermitted;
    if ((wanted->handleTypes & ~uint64_t{kFileDescriptor}) != 0) return kInvalidValue;
    constexpr unsigned kMost = 1 << 20;  // far more than the driver takes
    const MulticastProperties properties{static_cast<int>(std::min(wanted->numDevices, kMost)),
                                         wanted->size, wanted->handleTypes != 0};
    return static_cast<CUresult>(memory.create_multicast(properties, handle));
  });
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle multicast, CUdevice device) {
  return call([&](VirtualMemory& memory) { return memory.add_device(multicast, device); });
}
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                            CUmemGenericAllocationHandle allocation, size_t allocation_offset,
                            size_t bytes, unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (flags != 0) return kInvalidValue;
    return static_cast<CUresult>(
        memory.bind(multicast, offset, allocation, allocation_offset, bytes));
  });
}
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (flags != 0) return kInvalidValue;
    return static_cast<CUresult>(
        memory.bind_address(multicast, offset, as_pointer(address), bytes));
  });
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                           size_t bytes) {
  return call(
      [&](VirtualMemory& memory) { return memory.unbind(multicast, device, offset, bytes); });
}

// Not CUDA's: the memory of each GPU behind an address of a mapped multicast object, in the order
// in which the GPUs were added, for kernels on the CPU (niccolite/emulation.h). `devices` says for
// how many `members` has room, and gets their number; `bytes` gets the length for which they are
// good. They stay good as long as the memory stays bound.
CUresult cuVirtualMulticastMembers(CUdeviceptr address, void** members, int* devices,
                                   size_t* bytes) {
  if (machine() == nullptr) return kNoDevice;
  if (members == nullptr || devices == nullptr || bytes == nullptr) return kInvalidValue;
  try {
    size_t offset = 0;
    const auto memory = machine()->multicast_memory(as_pointer(address), &offset);
    if (memory == nullptr || memory->devices() > *devices) return kInvalidValue;
    *devices = memory->devices();
    std::vector<std::byte*> found(static_cast<size_t>(*devices));
    *bytes = memory->find(offset, found);
    if (*bytes == 0) return kNotFound;
    std::copy(found.begin(), found.end(), members);
    return kSuccess;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

// ---- addresses and mappings

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (address == nullptr || flags != 0) return kInvalidValue;
    void* base = nullptr;
    const auto result =
        static_cast<CUresult>(memory.reserve(bytes, alignment, as_pointer(hint), &base));
    if (result == kSuccess) *address = reinterpret_cast<CUdeviceptr>(base);
    return result;
  });
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return call(
      [&](VirtualMemory& memory) { return memory.free_reservation(as_pointer(address), bytes); });
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (flags != 0) return kInvalidValue;
    return static_cast<CUresult>(memory.map(as_pointer(address), bytes, offset, handle));
  });
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return call([&](VirtualMemory& memory) { return memory.unmap(as_pointer(address), bytes); });
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* list,
                        size_t count) {
  return call([&](VirtualMemory& memory) -> CUresult {
    if (list == nullptr) return kInvalidValue;
    std::vector<DeviceAccess> access;
    for (size_t i = 0; i < count; ++i) {
      const auto wanted = static_cast<Access>(list[i].flags);
      const bool is_known = list[i].flags == 0 || list[i].flags == 1 || list[i].flags == 3;
      if (!is_known || list[i].location.type != kOnDevice) return kInvalidValue;
      access.push_back({list[i].location.id, wanted});
    }
    return static_cast<CUresult>(memory.set_access(as_pointer(address), bytes, access));
  });
}
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  return call([&](VirtualMemory& memory) -> CUresult {
    AddressDescription found;
    if (flags == nullptr || location == nullptr || location->type != kOnDevice ||
        !memory.describe(as_pointer(address), &found) || found.mapping == nullptr)
      return kInvalidValue;
    if (!machine()->device_info(location->id).is_ok()) return kInvalidDevice;
    *flags = 0;
    for (const DeviceAccess& one : found.access)
      if (one.device == location->id) *flags = static_cast<unsigned long long>(one.access);
    return kSuccess;
  });
}

}  // extern "C"
