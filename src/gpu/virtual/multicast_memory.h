// MulticastMemory: the memory behind a range of multicast addresses, as this process reaches it.
// Used by the virtual driver and, through VirtualMachine, by executor/host. Thread safety:
// immutable; it keeps its mappings as long as it lives.
#pragma once

#include <cstddef>
#include <span>

namespace niccolite::gpu::virtual_ {

class MulticastMemory {
 public:
  virtual ~MulticastMemory() = default;
  /// GPUs of the team.
  virtual int devices() const = 0;
  /// `members` gets a pointer for each GPU, in the order in which the GPUs joined the team: to its
  /// memory at `offset` of the range. Returns for how many bytes the pointers are good; 0: some
  /// GPU has no memory bound there, or the process that bound it has ended.
  virtual size_t find(size_t offset, std::span<std::byte*> members) const = 0;
};

}  // namespace niccolite::gpu::virtual_
