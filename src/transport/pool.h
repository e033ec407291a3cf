// Pool: the shareable device memory of one GPU, or page-locked memory of the host, from which all
// communicators of this process carve their ends of connections.
//
//   Chunk   one allocation, named to other ranks by its token
//   Span    a piece of a chunk, which it keeps alive
//   Pool    the chunks of a GPU that still have room: small pieces of several communicators share
//           them. Memory is carved once: what a communicator leaves is used by nobody else, since a
//           kernel of an aborted peer may still store to it; the chunk goes when its last piece
//           does.
//   Share   one communicator's part of a pool; can be suspended, which gives the memory of chunks
//           that nobody else uses back to the driver while their addresses stay taken
//
// Thread safety: chunks and pools are synchronised; a share is used by one thread at a time
// (Endpoint holds its lock).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "gpu/memory.h"
#include "transport/shareable.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

class Chunk final : public Shareable {
 public:
  /// Allocates and enters the chunk in the process's table.
  /// `device` -1: of page-locked host memory, which is not suspended.
  static Result<std::shared_ptr<Chunk>> create(gpu::Machine& machine, int device, size_t bytes);
  /// The live chunk of this process with this token, or null.
  static std::shared_ptr<Chunk> find(const Token& token);

  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  size_t bytes() const { return memory_.bytes(); }
  int device() const { return memory_.device(); }
  /// InvalidUsage while the chunk is suspended.
  Result<Fd> export_descriptor() const override EXCLUDES(mutex_);
  /// Keeps a descriptor from now on, so that export_descriptor() need not ask the driver. The
  /// driver may block: behind a launch of this process that waits for room, which kernels have that
  /// wait for the very peer that asks for the descriptor.
  Status hold_descriptor() EXCLUDES(mutex_);
  /// Lets kernels of another device of this process use the chunk.
  Status grant_access(int device) const;

  /// Takes `bytes` that were never carved: their offset, or nothing when there is no room.
  std::optional<size_t> carve(size_t bytes) EXCLUDES(mutex_);
  /// Divides the chunk's bytes among its users in proportion to their carved bytes, and returns the
  /// share of the caller, which has carved `carved` bytes. The shares of all users add up to the
  /// chunk.
  size_t share_of(size_t carved) const EXCLUDES(mutex_);

  /// A share has pieces of the chunk, and uses them from now on. True when the chunk was suspended:
  /// then its memory is there again, at the same addresses, and zero.
  Result<bool> use() EXCLUDES(mutex_);
  /// A share's pieces are not used for the time being. When nobody uses the chunk, its memory goes
  /// back to the driver.
  Status suspend() EXCLUDES(mutex_);
  /// A share ends. The memory stays as long as somebody holds the chunk: kernels of an aborted peer
  /// may still store to it.
  void leave() EXCLUDES(mutex_);

 private:
  Chunk(gpu::Machine& machine, gpu::Memory memory, const Token& token)
      : Shareable(token), machine_(machine), memory_(std::move(memory)) {}

  gpu::Machine& machine_;
  gpu::Memory memory_;
  mutable std::mutex mutex_;
  size_t carved_ GUARDED_BY(mutex_) = 0;  // bytes, from its start
  size_t users_ GUARDED_BY(mutex_) = 0;
  bool is_suspended_ GUARDED_BY(mutex_) = false;
  bool holds_descriptor_ GUARDED_BY(mutex_) = false;
  Fd held_ GUARDED_BY(mutex_);  // not while suspended: it would keep the memory
};

struct Span {
  std::shared_ptr<Chunk> chunk;
  size_t offset = 0;
  std::byte* data() const { return chunk->data() + offset; }
};

class Pool {
 public:
  /// Connections: memory that a suspended communicator gives back. Persistent: memory that stays.
  /// They have separate chunks. Host: page-locked memory, of `device` -1, which stays, too.
  enum class Purpose : unsigned char { Connections, Persistent, Host };
  /// The process's pool of that GPU; made when it is first needed.
  static std::shared_ptr<Pool> of(gpu::Machine& machine, int device, Purpose purpose);
  Pool(gpu::Machine& machine, int device, size_t chunk_bytes)
      : machine_(machine), device_(device), chunk_bytes_(chunk_bytes) {}

  /// Zeroed memory, 256-byte aligned: a piece for each of the sizes (> 0), in their order. Pieces
  /// that fit into a chunk in use lie there, all others in one new chunk.
  Result<std::vector<Span>> allocate(std::span<const size_t> sizes) EXCLUDES(mutex_);

  gpu::Machine& machine() const { return machine_; }
  int device() const { return device_; }
  static size_t rounded(size_t bytes);

 private:
  gpu::Machine& machine_;
  const int device_;
  const size_t chunk_bytes_;  // the least that a chunk has
  std::mutex mutex_;
  std::vector<std::weak_ptr<Chunk>> chunks_ GUARDED_BY(mutex_);
};

class Share {
 public:
  explicit Share(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  ~Share();
  Share(const Share&) = delete;

  /// Allocates as Pool::allocate() does, but not while suspended.
  Result<std::vector<Span>> allocate(std::span<const size_t> sizes);
  /// Device memory that the share takes, its part of shared chunks included.
  size_t bytes() const;

  /// The content of all connections is lost: every other end must be suspended, too.
  Status suspend();
  /// All memory is zero again, as after allocate(). Peers of other processes map it anew.
  Status resume();
  bool is_suspended() const { return is_suspended_; }

 private:
  struct Piece {
    size_t offset;
    size_t bytes;
  };
  Status clear(const Chunk& chunk, std::span<const Piece> pieces);

  std::shared_ptr<Pool> pool_;
  std::map<std::shared_ptr<Chunk>, std::vector<Piece>> pieces_;
  bool is_suspended_ = false;
};

}  // namespace niccolite::transport
