#include "transport/host_memory.h"

#include "gpu/machine.h"

namespace niccolite::transport {

std::string HostMemory::objection(const Pair& pair) const {
  if (!pair.same_machine) return "they are on different machines";
  if (!pair.shares_host) return "NCCL_SHM_DISABLE forbids shared host memory";
  return {};
}

// All devices of a process can use its page-locked memory.
Status HostMemory::let_in(const Chunk& /*chunk*/, int /*device*/) { return {}; }

Result<MemoryConnector::RemoteChunk> HostMemory::open(int peer, const Origin& origin, Fd kept,
                                                      const Deadline& deadline) {
  if (origin.address.empty()) return find_here(peer, origin);
  RemoteChunk chunk;
  chunk.imported = TRY(Import::open(machine_, kHost, origin, deadline, std::move(kept)));
  return chunk;
}

}  // namespace niccolite::transport
