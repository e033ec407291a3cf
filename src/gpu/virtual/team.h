// VirtualMulticast: the library's view of multicast objects (gpu/multicast.h). A team is a
// MulticastObject, and its mapping a range of reserved addresses that MemoryMap knows. Thread
// safety: any thread.
#pragma once

#include "gpu/multicast.h"
#include "gpu/virtual/multicast.h"
#include "gpu/virtual/visible.h"

namespace niccolite::gpu::virtual_ {

class VirtualMulticast final : public Multicast {
 public:
  /// Both outlive it.
  VirtualMulticast(MemoryMap& memory, const VisibleDevices& visible)
      : memory_(memory), visible_(visible) {}

  bool has_multicast(int device) override;
  Result<size_t> granularity(int devices) override;
  Result<size_t> binding_granularity(int devices) override { return granularity(devices); }
  Result<MulticastTeam> create(int devices, size_t bytes) override;
  Result<Fd> export_team(const MulticastTeam& team) override;
  Result<MulticastTeam> import_team(Fd fd, size_t bytes) override;
  Status join(const MulticastTeam& team, int device) override;
  Status bind(const MulticastTeam& team, int device, size_t offset, const void* memory,
              size_t bytes) override;
  Status unbind(const MulticastTeam& team, int device, size_t offset, size_t bytes) override;
  Result<MulticastMapping> map(const MulticastTeam& team, int device) override;

 private:
  struct Team;
  struct Mapped;

  bool is_visible(int device) const { return device >= 0 && device < visible_.count(); }
  Status check(const char* what, int device, Error error) const;
  Status release_team(void* handle) override;
  Status release_mapping(void* handle) override;

  MemoryMap& memory_;
  const VisibleDevices& visible_;
};

}  // namespace niccolite::gpu::virtual_
