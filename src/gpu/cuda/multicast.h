// CudaMulticast: multicast teams by the CUDA driver (cuMulticastCreate and its relatives, CUDA 12.1
// and later). Nothing here calls cuMulticast* unless its caller has been asked for a team. Thread
// safety: any thread.
#pragma once

#include "gpu/cuda/driver.h"
#include "gpu/multicast.h"

namespace niccolite::gpu::cuda {

class CudaMachine;

class CudaMulticast final : public Multicast {
 public:
  /// `machine` outlives it.
  explicit CudaMulticast(CudaMachine& machine) : machine_(machine) {}

  bool has_multicast(int ordinal) override;
  Result<size_t> granularity(int devices) override;
  Result<size_t> binding_granularity(int devices) override;
  Result<MulticastTeam> create(int devices, size_t bytes) override;
  Result<Fd> export_team(const MulticastTeam& team) override;
  Result<MulticastTeam> import_team(Fd fd, size_t bytes) override;
  Status join(const MulticastTeam& team, int ordinal) override;
  Status bind(const MulticastTeam& team, int ordinal, size_t offset, const void* memory,
              size_t bytes) override;
  Status unbind(const MulticastTeam& team, int ordinal, size_t offset, size_t bytes) override;
  Result<MulticastMapping> map(const MulticastTeam& team, int ordinal) override;

 private:
  struct Team;
  struct Mapped;

  Result<size_t> granularity(int devices, int option);
  Status release_team(void* handle) override;
  Status release_mapping(void* handle) override;

  CudaMachine& machine_;
};

}  // namespace niccolite::gpu::cuda
