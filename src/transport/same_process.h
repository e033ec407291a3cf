// SameProcess: connects ranks of one process by GPU memory that both use at one address.
#pragma once

#include "transport/memory_connector.h"

namespace niccolite::transport {

class SameProcess final : public MemoryConnector {
 public:
  SameProcess(gpu::Machine& machine, int device)
      : MemoryConnector(Pool::of(machine, device, Pool::Purpose::Connections), device) {}

  Kind kind() const override { return Kind::SameProcess; }
  std::string name() const override { return "P2P/direct pointer"; }
  std::string objection(const Pair& pair) const override;

  size_t device_bytes() const override EXCLUDES(mutex_);
  Status suspend_own() override EXCLUDES(mutex_);
  Status resume_own() override EXCLUDES(mutex_);

 private:
  Status let_in(const Chunk& chunk, int device) override;
  Result<RemoteChunk> open(int peer, const Origin& origin, Fd kept,
                           const Deadline& deadline) override;
};

/// Why GPUs do not use each other's memory, as objection() says it; empty: they do.
std::string objection_to(PeerAccess access);

}  // namespace niccolite::transport
