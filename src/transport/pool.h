// Arena: the shareable device memory from which one rank carves its ends of connections.
// Thread safety: Arena is not synchronised (Endpoint holds its lock); chunks and the table of
// chunks are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/machine.h"

namespace niccolite::transport {

/// Names a chunk to other ranks; random, so that knowing it is the right to map the chunk.
using Token = std::array<uint8_t, 16>;

class Chunk {
 public:
  ~Chunk();
  /// Allocates and enters the chunk in the process's table.
  static Result<std::shared_ptr<Chunk>> create(gpu::Machine& machine, int device, size_t bytes);
  /// The live chunk of this process with this token, or null.
  static std::shared_ptr<Chunk> find(const Token& token);

  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  size_t bytes() const { return memory_.bytes(); }
  const Token& token() const { return token_; }
  Result<Fd> export_descriptor() const { return machine_.export_memory(memory_); }
  /// Lets kernels of another device of this process use the chunk.
  Status grant_access(int device) const;

 private:
  Chunk(gpu::Machine& machine, gpu::Memory memory, const Token& token)
      : machine_(machine), memory_(std::move(memory)), token_(token) {}
  gpu::Machine& machine_;
  gpu::Memory memory_;
  Token token_;
};

/// A piece of a chunk, which it keeps alive.
struct Span {
  std::shared_ptr<Chunk> chunk;
  size_t offset = 0;
  std::byte* data() const { return chunk->data() + offset; }
};

class Arena {
 public:
  Arena(gpu::Machine& machine, int device, size_t chunk_bytes)
      : machine_(machine), device_(device), chunk_bytes_(chunk_bytes) {}

  /// Zeroed memory, 256-byte aligned: a piece of each of the sizes (> 0), in their order. What has
  /// room at the end of an earlier chunk lies there, all the rest in one new chunk. Never given
  /// back before the arena ends.
  Result<std::vector<Span>> allocate(std::span<const size_t> sizes);
  size_t allocated_bytes() const;

 private:
  struct Carved {
    std::shared_ptr<Chunk> chunk;
    size_t used;  // bytes, from its start
  };

  gpu::Machine& machine_;
  int device_;
  size_t chunk_bytes_;  // the least that a chunk has
  std::vector<Carved> chunks_;
};

}  // namespace niccolite::transport
