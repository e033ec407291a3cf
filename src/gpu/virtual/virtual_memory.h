// VirtualMemory: CUDA's virtual memory management for programs: memory without addresses
// (allocations), addresses without memory (reservations), mappings of one in the other, access to
// mappings, and multicast objects (multicast.h), which are mapped as allocations are. Reached by
// VirtualMachine::virtual_memory(); `AddressSpace` implements it.
//
// The rules follow CUDA 13's driver, also where its manual is silent: a mapping is of a whole
// allocation; mappings and reservations that lie side by side count as one range.
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/virtual/error.h"

namespace niccolite::gpu::virtual_ {

/// Sizes and addresses are multiples of this, as on GPUs.
inline constexpr size_t kAllocationGranularity = size_t{2} << 20;

/// CUmemGenericAllocationHandle.
using AllocationHandle = uint64_t;

struct AllocationProperties {
  int device = 0;
  bool is_exportable = false;  // as a file descriptor
  bool is_rdma_capable = false;
};

struct MulticastProperties {
  int devices = 0;
  size_t bytes = 0;  // that each device can bind
  bool is_exportable = false;
};
/// How long a call waits for the other devices of a team.
inline constexpr std::chrono::seconds kTeamPatience{60};

/// The values of CUmemAccess_flags.
enum class Access : uint8_t { None = 0, Read = 1, ReadWrite = 3 };

struct DeviceAccess {
  int device = 0;
  Access access = Access::None;
};

/// The object that contains an address.
struct AddressDescription {
  std::byte* reservation = nullptr;
  size_t reserved_bytes = 0;
  std::byte* mapping = nullptr;  // null: nothing is mapped there, and the rest says nothing
  size_t mapped_bytes = 0;
  AllocationProperties properties;
  uint64_t allocation_id = 0;  // never used again
  std::vector<DeviceAccess> access;
};

class VirtualMemory {
 public:
  // ---- allocations; InvalidValue also for a handle that is none
  virtual Error create(const AllocationProperties& properties, size_t bytes,
                       AllocationHandle* out) = 0;
  /// Takes a reference away. The memory lives as long as there are references, mappings, or
  /// descriptors in any process.
  virtual Error release(AllocationHandle handle) = 0;
  /// The handle that `address` was mapped by, with one reference more.
  virtual Error retain(const void* address, AllocationHandle* out) = 0;
  virtual Error properties(AllocationHandle handle, AllocationProperties* out) = 0;
  /// A descriptor that is the caller's to close.
  virtual Error export_allocation(AllocationHandle handle, int* descriptor) = 0;
  /// `descriptor`, of any process of this machine, stays the caller's.
  virtual Error import_allocation(int descriptor, AllocationHandle* out) = 0;

  // ---- multicast objects: release(), export_allocation(), import_allocation() and map() take
  // their handles, too
  virtual Error create_multicast(const MulticastProperties& properties, AllocationHandle* out) = 0;
  /// InvalidValue: no multicast object, a device that was added before, or a complete team.
  virtual Error add_device(AllocationHandle multicast, int device) = 0;
  /// Binds memory of a device of the team, and keeps it alive as long as it is bound. Waits until
  /// the team is complete; SystemNotReady when it is not after kTeamPatience. InvalidDevice: the
  /// memory is of no device of the team. InvalidValue: no multiple of the granularity, not within
  /// both, or over another binding of the device.
  virtual Error bind(AllocationHandle multicast, size_t offset, AllocationHandle memory,
                     size_t memory_offset, size_t bytes) = 0;
  /// Like bind(), with memory that is mapped at `address`.
  virtual Error bind_address(AllocationHandle multicast, size_t offset, const void* address,
                             size_t bytes) = 0;
  /// InvalidValue: this process has not bound such a range.
  virtual Error unbind(AllocationHandle multicast, int device, size_t offset, size_t bytes) = 0;

  // ---- addresses
  /// `hint` is where the range shall begin, if that is free; null: anywhere.
  virtual Error reserve(size_t bytes, size_t alignment, void* hint, void** out) = 0;
  /// InvalidValue: not exactly a reservation, or something is mapped in it.
  virtual Error free_reservation(void* base, size_t bytes) = 0;

  // ---- mappings
  /// NotSupported: only a part of the allocation. Of a multicast object: waits as bind() does.
  virtual Error map(void* address, size_t bytes, size_t offset, AllocationHandle handle) = 0;
  /// Waits for work of the devices that have access. InvalidValue: a part of a mapping, or
  /// addresses that are not reserved.
  virtual Error unmap(void* address, size_t bytes) = 0;
  /// InvalidValue: the range is not mapped as a whole, or is a part of a mapping.
  virtual Error set_access(void* address, size_t bytes,
                           const std::vector<DeviceAccess>& access) = 0;
  /// False: the address is in no reservation.
  virtual bool describe(const void* address, AddressDescription* out) = 0;

 protected:
  ~VirtualMemory() = default;
};

}  // namespace niccolite::gpu::virtual_
