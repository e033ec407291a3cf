// Shareable memory apart from its addresses, and addresses to map it at a second time: what
// cuMemRetainAllocationHandle, cuMemAddressReserve and cuMemMap are on CUDA. Thread safety: none;
// the memory map that mappings are entered in has its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "gpu/virtual/memory.h"

namespace niccolite::gpu::virtual_ {

/// Mappings begin and end at multiples of a page.
inline constexpr size_t kMappingGranularity = 4096;

/// Addresses that nothing can be accessed at, until something is mapped there; munmap gives them
/// back. `alignment` is a power of two, and both are multiples of kMappingGranularity.
Error reserve_aligned(size_t bytes, size_t alignment, std::byte** out);

struct PhysicalMemory {
  Fd fd;  // its file begins with the memory
  size_t bytes = 0;

  /// Imports the memory of another process. InvalidValue: the file does not have as many bytes.
  static Error import(Fd fd, size_t bytes, std::unique_ptr<PhysicalMemory>* out);
};

class AddressReservation {
 public:
  /// `alignment` is a power of two.
  static Error create(MemoryMap& map, size_t bytes, size_t alignment,
                      std::unique_ptr<AddressReservation>* out);
  /// Unmaps all that is mapped in it.
  ~AddressReservation();
  AddressReservation(const AddressReservation&) = delete;

  /// Maps all of `memory`, as memory of `device`. InvalidValue: not within the range, no multiple
  /// of a page, or over an earlier mapping.
  Error map_memory(size_t offset, const PhysicalMemory& memory, int device);
  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  AddressReservation(MemoryMap& map, std::byte* base, size_t bytes)
      : map_(map), base_(base), bytes_(bytes) {}
  MemoryMap& map_;
  std::byte* const base_;
  const size_t bytes_;
  std::vector<std::byte*> mapped_;
};

}  // namespace niccolite::gpu::virtual_
