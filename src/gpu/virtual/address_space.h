// AddressSpace: the allocations, reservations and mappings that the program made by CUDA's virtual
// memory management (virtual_memory.h). An allocation is a memfd of its own, whose name tells its
// device to whoever imports it; a reservation is a range that nothing can be accessed in; to map is
// to map the file there. MemoryMap knows the mappings, as it knows all memory.
//
// Invariant: mappings lie in reservations and do not overlap. Thread safety: any thread; one mutex,
// which is never held while work is waited for.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/thread_annotations.h"
#include "gpu/virtual/handle_table.h"
#include "gpu/virtual/memory.h"
#include "gpu/virtual/multicast.h"
#include "gpu/virtual/virtual_memory.h"
#include "gpu/virtual/visible.h"

namespace niccolite::gpu::virtual_ {

class AddressSpace final : public VirtualMemory {
 public:
  /// `drain` waits for the work of a device.
  /// `visible` must outlive it.
  AddressSpace(MemoryMap& memory, const VisibleDevices& visible,
               std::function<void(int device)> drain);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;

  Error create(const AllocationProperties& properties, size_t bytes,
               AllocationHandle* out) override;
  Error release(AllocationHandle handle) override;
  Error retain(const void* address, AllocationHandle* out) override;
  Error properties(AllocationHandle handle, AllocationProperties* out) override;
  Error export_allocation(AllocationHandle handle, int* descriptor) override;
  Error import_allocation(int descriptor, AllocationHandle* out) override;
  Error create_multicast(const MulticastProperties& properties, AllocationHandle* out) override;
  Error add_device(AllocationHandle multicast, int device) override;
  Error bind(AllocationHandle multicast, size_t offset, AllocationHandle memory,
             size_t memory_offset, size_t bytes) override;
  Error bind_address(AllocationHandle multicast, size_t offset, const void* address,
                     size_t bytes) override;
  Error unbind(AllocationHandle multicast, int device, size_t offset, size_t bytes) override;
  Error reserve(size_t bytes, size_t alignment, void* hint, void** out) override;
  Error free_reservation(void* base, size_t bytes) override;
  Error map(void* address, size_t bytes, size_t offset, AllocationHandle handle) override;
  Error unmap(void* address, size_t bytes) override;
  Error set_access(void* address, size_t bytes, const std::vector<DeviceAccess>& access) override;
  bool describe(const void* address, AddressDescription* out) override;

  /// Freed ranges that stay out of use for a while, so that a late access is an error.
  static constexpr size_t kRetiredReservations = 16;

 private:
  struct Bound;
  struct Allocation {
    Fd file;
    size_t bytes = 0;
    AllocationProperties properties;
    bool is_import = false;
    uint64_t id = 0;
    void* handle = nullptr;
    // Under the mutex:
    size_t references = 1;
    size_t mappings = 0;  // and bindings to multicast objects
    // A multicast object has these in the place of `file`:
    std::shared_ptr<MulticastObject> multicast;
    std::vector<Bound> bound;  // by this process
  };
  struct Bound {
    int device;
    size_t offset;
    size_t bytes;
    std::shared_ptr<Allocation> memory;
  };
  struct Mapping {
    std::shared_ptr<Allocation> allocation;
    size_t bytes = 0;
    std::map<int, Access> access;  // by device
  };
  using Mappings = std::map<std::byte*, Mapping>;
  struct Range {
    std::byte* base;
    size_t bytes;
  };

  std::shared_ptr<Allocation> find(AllocationHandle handle) REQUIRES(mutex_);
  AllocationHandle enter(std::shared_ptr<Allocation> allocation) REQUIRES(mutex_);
  void drop_if_unused(const std::shared_ptr<Allocation>& allocation) REQUIRES(mutex_);
  /// The object, once its team is complete.
  Error await_team(AllocationHandle handle, std::shared_ptr<Allocation>* out);
  Error bind_memory(const std::shared_ptr<Allocation>& object, size_t offset,
                    const std::shared_ptr<Allocation>& memory, size_t memory_offset, size_t bytes)
      REQUIRES(mutex_);
  Error map_multicast(std::byte* base, size_t bytes, size_t offset,
                      const std::shared_ptr<Allocation>& object);
  Error check_place(std::byte* base, size_t bytes) REQUIRES(mutex_);
  /// The mapping that `address` lies in; end(): none.
  Mappings::iterator mapping_at(const void* address) REQUIRES(mutex_);
  bool is_reserved(const std::byte* address, size_t bytes) REQUIRES(mutex_);
  /// The mappings in the range; false when one of them reaches out of it.
  bool collect(std::byte* address, size_t bytes, std::vector<Mappings::iterator>* out)
      REQUIRES(mutex_);
  Error protect(Mappings::iterator mapping) REQUIRES(mutex_);
  void drop_retired(size_t most) REQUIRES(mutex_);

  MemoryMap& memory_;
  const VisibleDevices& visible_;
  const std::function<void(int device)> drain_;
  std::mutex mutex_;  // before MemoryMap's
  HandleTable<Allocation, HandleKind::Allocation> allocations_;
  std::map<std::byte*, size_t> reservations_ GUARDED_BY(mutex_);  // bytes, by base
  Mappings mappings_ GUARDED_BY(mutex_);
  std::deque<Range> retired_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite::gpu::virtual_
