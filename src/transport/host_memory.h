// HostMemory: connects ranks of one machine by page-locked memory of the host, which the kernels of
// both write and read: for GPUs without peer access to each other. It takes no memory of the GPUs,
// so that a suspended communicator keeps it. Lines of 128 bytes do not arrive whole over PCIe: no
// LL128.
#pragma once

#include "transport/memory_connector.h"

namespace niccolite::transport {

class HostMemory final : public MemoryConnector {
 public:
  explicit HostMemory(gpu::Machine& machine)
      : MemoryConnector(Pool::of(machine, kHost, Pool::Purpose::Host), kHost) {}

  Kind kind() const override { return Kind::HostMemory; }
  std::string name() const override { return "SHM"; }
  std::string objection(const Pair& pair) const override;

 private:
  static constexpr int kHost = -1;  // no device's

  Status let_in(const Chunk& chunk, int device) override;
  Result<RemoteChunk> open(int peer, const Origin& origin, Fd kept,
                           const Deadline& deadline) override;
};

}  // namespace niccolite::transport
