#include "gpu/virtual/mappings.h"

#include <sys/mman.h>

#include <utility>

namespace niccolite::gpu::virtual_ {

Error PhysicalMemory::import(Fd fd, size_t bytes, std::unique_ptr<PhysicalMemory>* out) {
  if (!can_be_mapped(fd, bytes, 0)) return Error::InvalidValue;
  *out = std::make_unique<PhysicalMemory>(PhysicalMemory{std::move(fd), bytes});
  return Error::None;
}

Error reserve_aligned(size_t bytes, size_t alignment, std::byte** out) {
  const size_t spare = alignment - kMappingGranularity;  // that alignment may cost
  if (bytes + spare < bytes) return Error::InvalidValue;
  void* const mapping =
      mmap(nullptr, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return Error::MemoryAllocation;
  auto* const begin = static_cast<std::byte*>(mapping);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (before > 0) munmap(begin, before);
  if (spare > before) munmap(begin + before + bytes, spare - before);
  *out = begin + before;
  return Error::None;
}

Error AddressReservation::create(MemoryMap& map, size_t bytes, size_t alignment,
                                 std::unique_ptr<AddressReservation>* out) {
  if (bytes == 0 || bytes % kMappingGranularity != 0 || alignment % kMappingGranularity != 0)
    return Error::InvalidValue;
  std::byte* base = nullptr;
  TRY_VIRTUAL(reserve_aligned(bytes, alignment, &base));
  *out = std::unique_ptr<AddressReservation>(new AddressReservation(map, base, bytes));
  return Error::None;
}

AddressReservation::~AddressReservation() {
  // Out of the table first: the addresses may be somebody else's as soon as they are unmapped.
  for (std::byte* base : mapped_) (void)map_.release(base);
  munmap(base_, bytes_);
}

Error AddressReservation::map_memory(size_t offset, const PhysicalMemory& memory, int device) {
  if (offset % kMappingGranularity != 0 || offset > bytes_ || memory.bytes > bytes_ - offset)
    return Error::InvalidValue;
  std::byte* const address = base_ + offset;
  TRY_VIRTUAL(map_.enter_mapping(device, address, memory.bytes));
  mapped_.push_back(address);
  if (mmap(address, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.fd.get(),
           0) == MAP_FAILED)
    return Error::OperatingSystem;
  return Error::None;
}

}  // namespace niccolite::gpu::virtual_
