// Mappings: memory that is mapped again, at addresses that the caller chooses. Thread safety: any
// thread, as all of Machine (machine.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "gpu/owner.h"

namespace niccolite::gpu {

class Mappings;

/// Shareable memory apart from its addresses: it is there as long as an owner, a mapping or an
/// export of it is, whoever frees it at its first address.
class Physical : public Owner<Mappings, Physical> {
 public:
  using Owner<Mappings, Physical>::Owner;

 private:
  friend Owner<Mappings, Physical>;
  static Status give_back(Mappings& from, void* handle);
};

/// Addresses kept for mappings; the mappings there go with them.
class Reservation : public Owner<Mappings, Reservation> {
 public:
  using Owner<Mappings, Reservation>::Owner;

 private:
  friend Owner<Mappings, Reservation>;
  static Status give_back(Mappings& from, void* handle);
};

/// Memory as it is mapped somewhere.
struct Backing {
  Physical memory;
  std::byte* base = nullptr;  // null for an import
  size_t bytes = 0;
  uint64_t id = 0;  // PointerInfo::id; 0 for an import
};
struct AddressRange {
  Reservation reservation;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

class Mappings {
 public:
  /// Mappings begin and end at multiples of this, in bytes.
  virtual Result<size_t> mapping_granularity(int device) = 0;
  /// The memory that `pointer` is mapped to: the whole mapping that it lies in. CudaError: memory
  /// that cannot be mapped again, such as cudaMalloc's.
  virtual Result<Backing> backing_of(const void* pointer) = 0;
  /// Is the memory of backing_of() still mapped where it was, so that `pointer` lies in it? For
  /// every launch.
  virtual bool is_mapped(const Backing& memory, const void* pointer) = 0;
  virtual Result<Fd> export_physical(const Physical& memory) = 0;
  /// Memory that another process exported, `bytes` long.
  virtual Result<Backing> import_physical(int device, Fd fd, size_t bytes) = 0;
  virtual Result<AddressRange> reserve_addresses(int device, size_t bytes, size_t alignment) = 0;
  /// Maps `pieces`, one behind the other, from `offset` of `range` on, for loads and stores by
  /// `devices`, at least one. The mapping keeps the memory alive.
  virtual Status map_physical(const AddressRange& range, size_t offset,
                              std::span<const Backing> pieces, const std::vector<int>& devices) = 0;

 protected:
  friend class Physical;
  friend class Reservation;
  ~Mappings() = default;
  virtual Status release_physical(void* handle) = 0;
  virtual Status release_reservation(void* handle) = 0;
};

}  // namespace niccolite::gpu
