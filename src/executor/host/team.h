// Team: the memory behind a multicast team's addresses, as one execution reaches it. What an
// NVSwitch does with one store to such an address, or with one load that reduces, is done here for
// each member. Thread safety: immutable once found.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "executor/launch.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

class Team {
 public:
  Team() = default;
  /// That of the launch's ports. Not complete: the memory of some member is gone.
  static Team find(gpu::virtual_::VirtualMachine& machine, const Launch& launch);
  /// That of the windows in which a buffer of so many bytes lies on all ranks. Not complete: it
  /// lies in none.
  static Team find(gpu::virtual_::VirtualMachine& machine, const Launch& launch, const void* buffer,
                   uint64_t bytes, const uint64_t* shifts);

  bool is_complete() const { return !members_.empty(); }
  size_t size() const { return members_.size(); }
  /// The memory of one member behind an address of the team.
  std::byte* at(size_t member, const std::byte* address) const {
    return members_[member] + (address - base_);
  }
  /// The memory of one member at the first address.
  std::byte* memory(size_t member) const { return members_[member]; }

 private:
  static Team find(gpu::virtual_::VirtualMachine& machine, int ranks, const std::byte* first,
                   size_t bytes);

  std::shared_ptr<const gpu::virtual_::MulticastMemory> memory_;
  const std::byte* base_ = nullptr;  // the first address of a port, or of the buffer
  std::vector<std::byte*> members_;  // there, in the order in which they joined
};

/// The windows of all ranks in which a work's buffers lie.
struct TeamWindows {
  Team input;
  Team output;
};

}  // namespace niccolite::executor::host
