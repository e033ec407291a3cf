#include "transport/gpu_memory.h"

#include "gpu/machine.h"
#include "transport/same_process.h"

namespace niccolite::transport {

std::string GpuMemory::objection(const Pair& pair) const {
  if (!pair.same_machine) return "they are on different machines";
  if (pair.same_process) return "they are in one process";
  return objection_to(pair.peer_access);
}

size_t GpuMemory::device_bytes() const {
  std::lock_guard lock(mutex_);
  return share_.bytes();
}

Status GpuMemory::suspend_peers() {
  lets_go_ = true;
  forget_kept();
  for (const auto& [token, chunk] : remote_chunks_) TRY(chunk.imported->suspend());
  return {};
}

Status GpuMemory::suspend_own() {
  std::lock_guard lock(mutex_);
  return share_.suspend();
}

Status GpuMemory::resume_own() {
  std::lock_guard lock(mutex_);
  return share_.resume();
}

Status GpuMemory::resume_peers(const Deadline& deadline) {
  for (const auto& [token, chunk] : remote_chunks_) TRY(chunk.imported->resume(deadline));
  lets_go_ = false;
  return {};
}

// Virtual GPUs export without waiting for anything, and thousands of ranks have few descriptors.
Status GpuMemory::prepare(Chunk& chunk) {
  if (machine_.kind() != gpu::Kind::Cuda) return {};
  return chunk.hold_descriptor();
}

// The token alone is the right to get the descriptor.
Status GpuMemory::let_in(const Chunk& /*chunk*/, int /*device*/) { return {}; }

Result<MemoryConnector::RemoteChunk> GpuMemory::open(int /*peer*/, const Origin& origin, Fd kept,
                                                     const Deadline& deadline) {
  RemoteChunk chunk;
  chunk.imported = TRY(Import::open(machine_, device_, origin, deadline, std::move(kept)));
  return chunk;
}

}  // namespace niccolite::transport
