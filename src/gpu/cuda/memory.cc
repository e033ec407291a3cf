// Memory. Device memory is virtual memory management's: it can be shared by file descriptor and
// made accessible to chosen devices, and neither allocating nor freeing it waits for kernels.
#include <algorithm>
#include <array>
#include <bit>

#include "gpu/cuda/allocation.h"
#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {

CuAllocationProperties CudaMachine::allocation_properties(const Device& owner, bool shareable) {
  CuAllocationProperties properties{};
  properties.type = kCuAllocationPinned;
  properties.requested_handle_types = shareable ? kCuHandlePosixFd : kCuHandleNone;
  properties.location = {kCuLocationDevice, owner.device};
  properties.flags.gpu_direct_rdma_capable = owner.can_be_rdma_target ? 1 : 0;
  return properties;
}

Result<size_t> CudaMachine::granularity_of(int ordinal, const CuAllocationProperties& properties) {
  size_t granularity = 0;
  TRY(driver_.check(
      driver_.cuMemGetAllocationGranularity(&granularity, &properties, kCuGranularityMinimum),
      "cuMemGetAllocationGranularity(device {})", ordinal));
  return granularity;
}

CudaMachine::Allocation* CudaMachine::allocation_of(const Memory& memory) {
  return static_cast<Allocation*>(memory.handle());
}

Result<CuStream> CudaMachine::internal_stream(int ordinal) {
  Device* found = TRY(device(ordinal));
  const std::lock_guard lock(found->mutex);
  if (found->internal_stream == nullptr) {
    TRY(driver_.check(driver_.cuStreamCreate(&found->internal_stream, kCuStreamNonBlocking),
                      "cuStreamCreate(device {})", ordinal));
  }
  return found->internal_stream;
}

Status CudaMachine::zero(int ordinal, CuPointer address, size_t bytes) {
  CuStream stream = TRY(internal_stream(ordinal));
  TRY(driver_.check(driver_.cuMemsetD8Async(address, 0, bytes, stream),
                    "cuMemsetD8Async({} bytes on device {})", bytes, ordinal));
  return driver_.check(driver_.cuStreamSynchronize(stream),
                       "cuStreamSynchronize(internal stream of device {})", ordinal);
}

Status CudaMachine::upload(int ordinal, void* target, const void* source, size_t bytes) {
  return copy_now(ordinal, target, source, bytes);
}

Status CudaMachine::download(int ordinal, void* target, const void* source, size_t bytes) {
  return copy_now(ordinal, target, source, bytes);
}

Status CudaMachine::copy_now(int ordinal, void* target, const void* source, size_t bytes) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  CuStream stream = TRY(internal_stream(ordinal));
  TRY(driver_.check(driver_.cuMemcpyAsync(as_pointer(target), as_pointer(source), bytes, stream),
                    "cuMemcpyAsync({} bytes to or from device {})", bytes, ordinal));
  return driver_.check(driver_.cuStreamSynchronize(stream),
                       "cuStreamSynchronize(internal stream of device {})", ordinal);
}

Status CudaMachine::allow_access(CuPointer address, size_t bytes, const std::vector<int>& devices) {
  std::vector<CuAccess> access;
  for (const int ordinal : devices) {
    access.push_back({{kCuLocationDevice, TRY(device(ordinal))->device}, kCuAccessReadWrite});
  }
  return driver_.check(driver_.cuMemSetAccess(address, bytes, access.data(), access.size()),
                       "cuMemSetAccess({} bytes for {} devices, the first of them {})", bytes,
                       access.size(), devices.front());
}

// Takes `allocation` over, also when it fails.
Result<Memory> CudaMachine::map(int ordinal, CuAllocation allocation, size_t bytes,
                                const std::vector<int>& devices, bool shareable) {
  Rollback release([&] { driver_.cuMemRelease(allocation); });
  CuPointer address = 0;
  TRY(driver_.check(driver_.cuMemAddressReserve(&address, bytes, 0, 0, 0),
                    "cuMemAddressReserve({} bytes)", bytes));
  Rollback free_address([&] { driver_.cuMemAddressFree(address, bytes); });
  TRY(driver_.check(driver_.cuMemMap(address, bytes, 0, allocation, 0), "cuMemMap({} bytes)",
                    bytes));
  Rollback unmap([&] { driver_.cuMemUnmap(address, bytes); });
  TRY(allow_access(address, bytes, devices));
  unmap.disarm();
  free_address.disarm();
  release.disarm();
  auto* handle = new Allocation{
      Allocation::Kind::Device, shareable, as_address(address), bytes, allocation, devices};
  return Memory(this, handle, handle->address, bytes, ordinal);
}

Result<DeviceMemory> CudaMachine::device_memory(int ordinal) {
  const ScopedContext scoped = TRY(enter(ordinal));
  DeviceMemory memory;
  TRY(driver_.check(driver_.cuMemGetInfo(&memory.free_bytes, &memory.total_bytes),
                    "cuMemGetInfo(device {})", ordinal));
  return memory;
}

Result<Memory> CudaMachine::allocate(int ordinal, size_t bytes, bool shareable) {
  Device* owner = TRY(device(ordinal));
  if (!owner->has_virtual_memory) {
    return Status::cuda_error("device {} has no virtual memory management", ordinal);
  }
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);

  const CuAllocationProperties properties = allocation_properties(*owner, shareable);
  const size_t granularity = TRY(granularity_of(ordinal, properties));
  const size_t rounded = (bytes + granularity - 1) / granularity * granularity;
  CuAllocation allocation = 0;
  TRY(driver_.check(driver_.cuMemCreate(&allocation, rounded, &properties, 0),
                    "cuMemCreate({} bytes on device {})", rounded, ordinal));

  std::vector<int> devices{ordinal};
  for (int peer = 0; shareable && peer < device_count(); ++peer) {
    if (peer != ordinal && can_access_peer(peer, ordinal)) devices.push_back(peer);
  }
  Memory memory = TRY(map(ordinal, allocation, rounded, devices, shareable));
  TRY(zero(ordinal, as_pointer(memory.data()), rounded));
  return memory;
}

Result<Memory> CudaMachine::allocate_as_user(int ordinal, size_t bytes) {
  const ScopedContext scoped = TRY(enter(ordinal));
  CuPointer address = 0;
  TRY(driver_.check(driver_.cuMemAlloc(&address, bytes), "cuMemAlloc({} bytes on device {})", bytes,
                    ordinal));
  Rollback release([&] { driver_.cuMemFree(address); });
  TRY(zero(ordinal, address, bytes));
  release.disarm();
  auto* handle =
      new Allocation{Allocation::Kind::User, false, as_address(address), bytes, 0, {ordinal}};
  return Memory(this, handle, handle->address, bytes, ordinal);
}

Result<Fd> CudaMachine::export_memory(const Memory& memory) {
  const Allocation* allocation = allocation_of(memory);
  if (allocation == nullptr || !allocation->shareable) {
    return Status::invalid_usage("memory of {} bytes was not allocated to be shared",
                                 memory.bytes());
  }
  if (allocation->kind == Allocation::Kind::SharedHost) return allocation->file.duplicate();
  return export_allocation(allocation->allocation);
}

Result<Memory> CudaMachine::import_memory(int ordinal, Fd fd, size_t bytes) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  const CuAllocation allocation = TRY(import_allocation(fd));
  return map(ordinal, allocation, bytes, {ordinal}, /*shareable=*/true);
}

Result<AllocationName> CudaMachine::name_allocation(const void* pointer) {
  const PointerInfo info = TRY(pointer_info(pointer));
  const ScopedContext scoped = TRY(enter(std::max(info.device, 0)));
  const ScopedRelaxedCapture relaxed(driver_);
  AllocationName name{};
  if (pool_of(pointer) != nullptr) {
    TRY(driver_.check(driver_.cuMemPoolExportPointer(name.data(), as_pointer(info.base)),
                      "cuMemPoolExportPointer({})", info.base));
    return name;
  }
  CuIpcHandle handle{};
  TRY(driver_.check(driver_.cuIpcGetMemHandle(&handle, as_pointer(info.base)),
                    "cuIpcGetMemHandle({})", info.base));
  return std::bit_cast<AllocationName>(handle);
}

Result<Memory> CudaMachine::open_allocation(int ordinal, const AllocationName& name, size_t bytes,
                                            const PoolImport* pool) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  CuPointer address = 0;
  if (pool != nullptr) {
    TRY(driver_.check(driver_.cuMemPoolImportPointer(
                          &address, static_cast<CuMemoryPool>(pool->handle()), name.data()),
                      "cuMemPoolImportPointer({} bytes for device {})", bytes, ordinal));
  } else {
    TRY(driver_.check(driver_.cuIpcOpenMemHandle(&address, std::bit_cast<CuIpcHandle>(name),
                                                 kCuIpcLazyEnablePeerAccess),
                      "cuIpcOpenMemHandle({} bytes for device {})", bytes, ordinal));
  }
  const auto kind = pool == nullptr ? Allocation::Kind::Opened : Allocation::Kind::OpenedFromPool;
  auto* handle = new Allocation{kind, false, as_address(address), bytes, 0, {ordinal}};
  return Memory(this, handle, handle->address, bytes, ordinal);
}

// Maps `allocation`, which it takes over also when it fails, at the addresses of `memory`.
Status CudaMachine::map_again(Allocation& memory, CuAllocation allocation) {
  Rollback release([&] { driver_.cuMemRelease(allocation); });
  const CuPointer address = as_pointer(memory.address);
  TRY(driver_.check(driver_.cuMemMap(address, memory.bytes, 0, allocation, 0), "cuMemMap({} bytes)",
                    memory.bytes));
  memory.allocation = allocation;
  release.disarm();
  return allow_access(address, memory.bytes, memory.devices);
}

Status CudaMachine::suspend_memory(const Memory& memory) {
  Allocation* allocation = allocation_of(memory);
  if (allocation == nullptr || !allocation->shareable ||
      allocation->kind == Allocation::Kind::SharedHost)
    return Status::invalid_usage("only device memory that can be shared can be suspended");
  const CuAllocation held = std::exchange(allocation->allocation, 0);
  if (held == 0) return {};
  const ScopedContext scoped = TRY(enter(memory.device()));
  const ScopedRelaxedCapture relaxed(driver_);
  TRY(driver_.check(driver_.cuMemUnmap(as_pointer(allocation->address), allocation->bytes),
                    "cuMemUnmap({} bytes)", allocation->bytes));
  return driver_.check(driver_.cuMemRelease(held), "cuMemRelease({} bytes)", allocation->bytes);
}

Status CudaMachine::resume_memory(const Memory& memory) {
  Allocation* allocation = allocation_of(memory);
  if (allocation == nullptr || allocation->allocation != 0) return {};
  Device* owner = TRY(device(memory.device()));
  const ScopedContext scoped = TRY(enter(memory.device()));
  const ScopedRelaxedCapture relaxed(driver_);
  const CuAllocationProperties properties = allocation_properties(*owner, /*shareable=*/true);
  CuAllocation made = 0;
  TRY(driver_.check(driver_.cuMemCreate(&made, allocation->bytes, &properties, 0),
                    "cuMemCreate({} bytes on device {})", allocation->bytes, memory.device()));
  TRY(map_again(*allocation, made));
  return zero(memory.device(), as_pointer(allocation->address), allocation->bytes);
}

Status CudaMachine::resume_import(const Memory& memory, Fd fd) {
  TRY(suspend_memory(memory));
  const ScopedContext scoped = TRY(enter(memory.device()));
  const ScopedRelaxedCapture relaxed(driver_);
  const CuAllocation imported = TRY(import_allocation(fd));
  return map_again(*allocation_of(memory), imported);
}

Status CudaMachine::grant_access(const Memory& memory, int ordinal) {
  const Allocation* allocation = allocation_of(memory);
  if (allocation == nullptr || allocation->kind != Allocation::Kind::Device) {
    return Status::invalid_usage("access can be granted to device memory only");
  }
  // Access that allocate() has granted is not granted again: the driver would map the memory anew.
  if (std::find(allocation->devices.begin(), allocation->devices.end(), ordinal) !=
      allocation->devices.end())
    return {};
  const ScopedRelaxedCapture relaxed(driver_);
  return allow_access(as_pointer(memory.data()), memory.bytes(), {ordinal});
}

Status CudaMachine::release_memory(void* handle) {
  const std::unique_ptr<Allocation> allocation(static_cast<Allocation*>(handle));
  const ScopedRelaxedCapture relaxed(driver_);
  if (allocation->kind == Allocation::Kind::Host ||
      allocation->kind == Allocation::Kind::SharedHost)
    return release_host(*allocation);
  const CuPointer address = as_pointer(allocation->address);
  if (allocation->kind == Allocation::Kind::User ||
      allocation->kind == Allocation::Kind::OpenedFromPool) {
    const ScopedContext scoped = TRY(enter(allocation->devices.front()));
    return driver_.check(driver_.cuMemFree(address), "cuMemFree({} bytes)", allocation->bytes);
  }
  if (allocation->kind == Allocation::Kind::Opened) {
    const ScopedContext scoped = TRY(enter(allocation->devices.front()));
    return driver_.check(driver_.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle({} bytes)",
                         allocation->bytes);
  }
  if (allocation->allocation == 0)  // suspended
    return driver_.check(driver_.cuMemAddressFree(address, allocation->bytes),
                         "cuMemAddressFree({} bytes)", allocation->bytes);
  // To its end, whatever fails; the first failure is the result.
  Status unmapped = driver_.check(driver_.cuMemUnmap(address, allocation->bytes),
                                  "cuMemUnmap({} bytes)", allocation->bytes);
  Status freed = driver_.check(driver_.cuMemAddressFree(address, allocation->bytes),
                               "cuMemAddressFree({} bytes)", allocation->bytes);
  Status released = driver_.check(driver_.cuMemRelease(allocation->allocation),
                                  "cuMemRelease({} bytes)", allocation->bytes);
  if (!unmapped.is_ok()) return unmapped;
  return freed.is_ok() ? std::move(released) : std::move(freed);
}

Result<PointerInfo> CudaMachine::pointer_info(const void* pointer) {
  unsigned type = 0;
  int ordinal = -1;
  unsigned is_managed = 0;
  CuPointer base = 0;
  size_t bytes = 0;
  unsigned long long id = 0;
  constexpr std::array kAttributes{kCuPointerMemoryType, kCuPointerDeviceOrdinal,
                                   kCuPointerIsManaged,  kCuPointerRangeStart,
                                   kCuPointerRangeSize,  kCuPointerBufferId};
  std::array<void*, kAttributes.size()> values{&type, &ordinal, &is_managed, &base, &bytes, &id};
  const ScopedContext scoped = TRY(enter_any());
  TRY(driver_.check(
      driver_.cuPointerGetAttributes(static_cast<unsigned>(kAttributes.size()), kAttributes.data(),
                                     values.data(), as_pointer(pointer)),
      "cuPointerGetAttributes({})", pointer));
  PointerInfo info;
  if (is_managed != 0) {
    info.kind = PointerKind::Managed;
  } else if (type == kCuMemoryTypeDevice) {
    info.kind = PointerKind::Device;
  } else if (type == kCuMemoryTypeHost) {
    info.kind = PointerKind::Host;
  } else {
    return info;  // memory the driver does not know
  }
  info.device = info.kind == PointerKind::Host ? -1 : ordinal;
  info.base = as_address(base);
  info.bytes = bytes;
  info.id = id;
  return info;
}

}  // namespace niccolite::gpu::cuda
