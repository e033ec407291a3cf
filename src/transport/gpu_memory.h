// GpuMemory: connects ranks of different processes by GPU memory that each maps of the other, by
// descriptor.
#pragma once

#include "transport/memory_connector.h"

namespace niccolite::transport {

class GpuMemory final : public MemoryConnector {
 public:
  GpuMemory(gpu::Machine& machine, int device)
      : MemoryConnector(Pool::of(machine, device, Pool::Purpose::Connections), device) {}

  Kind kind() const override { return Kind::GpuMemory; }
  std::string name() const override { return "P2P/IPC"; }
  std::string objection(const Pair& pair) const override;

  size_t device_bytes() const override EXCLUDES(mutex_);
  Status suspend_peers() override;
  Status suspend_own() override EXCLUDES(mutex_);
  Status resume_own() override EXCLUDES(mutex_);
  Status resume_peers(const Deadline& deadline) override;

 private:
  Status prepare(Chunk& chunk) override;
  Status let_in(const Chunk& chunk, int device) override;
  Result<RemoteChunk> open(int peer, const Origin& origin, Fd kept,
                           const Deadline& deadline) override;
};

}  // namespace niccolite::transport
