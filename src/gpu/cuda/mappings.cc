// Memory mapped again, at addresses that the caller chooses. Any memory of virtual memory
// management will do, whoever made it: its handle is found by its address.
#include <fcntl.h>

#include <array>
#include <bit>
#include <span>
#include <utility>

#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

// The object behind Physical::handle(): a reference to the memory.
struct PhysicalMemory {
  CuAllocation allocation = 0;
};

struct AddressReservation {
  CuPointer address = 0;
  size_t bytes = 0;
  std::vector<std::pair<CuPointer, size_t>> mapped;
};

PhysicalMemory* physical_of(const Physical& memory) {
  return static_cast<PhysicalMemory*>(memory.handle());
}

}  // namespace

Result<size_t> CudaMachine::mapping_granularity(int ordinal) {
  Device* owner = TRY(device(ordinal));
  if (!owner->has_virtual_memory) {
    return Status::cuda_error("device {} has no virtual memory management", ordinal);
  }
  return granularity_of(ordinal, allocation_properties(*owner, /*shareable=*/true));
}

Result<std::span<std::byte>> CudaMachine::mapping_around(const void* pointer) {
  CuPointer base = 0;
  size_t bytes = 0;
  constexpr std::array kAttributes{kCuPointerMappingBase, kCuPointerMappingSize};
  std::array<void*, kAttributes.size()> values{&base, &bytes};
  const ScopedContext scoped = TRY(enter_any());
  const CuResult result =
      driver_.cuPointerGetAttributes(static_cast<unsigned>(kAttributes.size()), kAttributes.data(),
                                     values.data(), as_pointer(pointer));
  if (result == kCuSuccess) return std::span(static_cast<std::byte*>(as_address(base)), bytes);
  // A driver that does not know these attributes: right where a reservation has one mapping.
  const PointerInfo info = TRY(pointer_info(pointer));
  return std::span(static_cast<std::byte*>(info.base), info.bytes);
}

Result<Backing> CudaMachine::backing_of(const void* pointer) {
  const PointerInfo info = TRY(pointer_info(pointer));
  const ScopedContext scoped = TRY(enter_any());
  const ScopedRelaxedCapture relaxed(driver_);
  CuAllocation allocation = 0;
  const CuResult result =
      driver_.cuMemRetainAllocationHandle(&allocation, const_cast<void*>(pointer));
  if (result == kCuInvalidValue) {
    return Status::cuda_error(
        "memory at {} cannot be mapped again: it is not of virtual memory management, as that of "
        "ncclMemAlloc and cuMemCreate is, and that of cudaMalloc is not",
        pointer);
  }
  TRY(driver_.check(result, "cuMemRetainAllocationHandle({})", pointer));
  Physical memory(this, new PhysicalMemory{allocation});
  const std::span<std::byte> mapping = TRY(mapping_around(pointer));
  return Backing{std::move(memory), mapping.data(), mapping.size(), info.id};
}

// Each mapping has a number of its own, also where the memory or the addresses were mapped before.
// Where the driver does not tell, it gives the handle that the memory was mapped by; while `memory`
// has it, no other memory can.
bool CudaMachine::is_mapped(const Backing& memory, const void* pointer) {
  if (memory.id != 0) {
    unsigned long long id = 0;
    constexpr int kAttribute = kCuPointerBufferId;
    void* value = &id;
    const Result<ScopedContext> scoped = enter_any();
    return scoped.is_ok() &&
           driver_.cuPointerGetAttributes(1, &kAttribute, &value, as_pointer(pointer)) ==
               kCuSuccess &&
           id == memory.id;
  }
  const Result<std::span<std::byte>> mapping = mapping_around(pointer);
  if (!mapping.is_ok() || mapping.value().data() != memory.base) return false;
  const Result<ScopedContext> scoped = enter_any();
  if (!scoped.is_ok()) return false;
  const ScopedRelaxedCapture relaxed(driver_);
  CuAllocation allocation = 0;
  if (driver_.cuMemRetainAllocationHandle(&allocation, const_cast<void*>(pointer)) != kCuSuccess) {
    return false;
  }
  driver_.cuMemRelease(allocation);
  return allocation == physical_of(memory.memory)->allocation;
}

Result<Fd> CudaMachine::export_allocation(CuAllocation allocation) {
  int fd = -1;
  TRY(driver_.check(driver_.cuMemExportToShareableHandle(&fd, allocation, kCuHandlePosixFd, 0),
                    "cuMemExportToShareableHandle"));
  Fd exported(fd);
  if (fcntl(exported.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return Status::from_errno(errno, "fcntl(FD_CLOEXEC) on exported memory");
  }
  return exported;
}

Result<CuAllocation> CudaMachine::import_allocation(const Fd& fd) {
  CuAllocation allocation = 0;
  // The descriptor travels in the pointer itself.
  void* handle = std::bit_cast<void*>(static_cast<uintptr_t>(fd.get()));
  TRY(driver_.check(driver_.cuMemImportFromShareableHandle(&allocation, handle, kCuHandlePosixFd),
                    "cuMemImportFromShareableHandle"));
  return allocation;
}

Result<Fd> CudaMachine::export_physical(const Physical& memory) {
  return export_allocation(physical_of(memory)->allocation);
}

Result<Backing> CudaMachine::import_physical(int ordinal, Fd fd, size_t bytes) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  const CuAllocation allocation = TRY(import_allocation(fd));
  return Backing{Physical(this, new PhysicalMemory{allocation}), nullptr, bytes, 0};
}

Result<AddressRange> CudaMachine::reserve_addresses(int ordinal, size_t bytes, size_t alignment) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  CuPointer address = 0;
  TRY(driver_.check(driver_.cuMemAddressReserve(&address, bytes, alignment, 0, 0),
                    "cuMemAddressReserve({} bytes)", bytes));
  auto* reservation = new AddressReservation{address, bytes, {}};
  return AddressRange{Reservation(this, reservation), static_cast<std::byte*>(as_address(address)),
                      bytes};
}

// Access is given to all pieces in one call of the driver.
Status CudaMachine::map_physical(const AddressRange& range, size_t offset,
                                 std::span<const Backing> pieces, const std::vector<int>& devices) {
  auto* reservation = static_cast<AddressReservation*>(range.reservation.handle());
  const ScopedContext scoped = TRY(enter(devices.front()));
  const ScopedRelaxedCapture relaxed(driver_);
  size_t end = offset;
  for (const Backing& piece : pieces) {
    if (end > range.bytes || piece.bytes > range.bytes - end) {
      return Status::cuda_error("{} bytes at {} reach beyond a reservation of {} bytes",
                                piece.bytes, end, range.bytes);
    }
    const CuPointer address = reservation->address + end;
    TRY(driver_.check(
        driver_.cuMemMap(address, piece.bytes, 0, physical_of(piece.memory)->allocation, 0),
        "cuMemMap({} bytes)", piece.bytes));
    reservation->mapped.emplace_back(address, piece.bytes);
    end += piece.bytes;
  }
  return allow_access(reservation->address + offset, end - offset, devices);
}

Status CudaMachine::release_physical(void* handle) {
  const std::unique_ptr<PhysicalMemory> memory(static_cast<PhysicalMemory*>(handle));
  const ScopedRelaxedCapture relaxed(driver_);
  return driver_.check(driver_.cuMemRelease(memory->allocation), "cuMemRelease");
}

Status CudaMachine::release_reservation(void* handle) {
  const std::unique_ptr<AddressReservation> reservation(static_cast<AddressReservation*>(handle));
  const ScopedRelaxedCapture relaxed(driver_);
  // To its end, whatever fails; the first failure is the result.
  Status status;
  for (const auto& [address, bytes] : reservation->mapped) {
    Status unmapped =
        driver_.check(driver_.cuMemUnmap(address, bytes), "cuMemUnmap({} bytes)", bytes);
    if (status.is_ok()) status = std::move(unmapped);
  }
  Status freed = driver_.check(driver_.cuMemAddressFree(reservation->address, reservation->bytes),
                               "cuMemAddressFree({} bytes)", reservation->bytes);
  return status.is_ok() ? std::move(freed) : std::move(status);
}

}  // namespace niccolite::gpu::cuda
