// Sharing: memory that several processes of one machine use: exports and imports of shareable
// memory, allocations of a program by their names, and memory pools. Thread safety: any thread, as
// all of Machine (machine.h).
#pragma once

#include <array>
#include <cstddef>

#include "base/fd.h"
#include "base/status.h"
#include "gpu/memory.h"
#include "gpu/owner.h"

namespace niccolite::gpu {

class Sharing;

/// A memory pool of another process, from which allocations can be opened.
class PoolImport : public Owner<Sharing, PoolImport> {
 public:
  using Owner<Sharing, PoolImport>::Owner;

 private:
  friend Owner<Sharing, PoolImport>;
  static Status give_back(Sharing& from, void* handle);
};

/// Names a user's allocation to other processes of this machine.
using AllocationName = std::array<std::byte, 64>;

class Sharing {
 public:
  /// A descriptor by which another process of this machine may map `memory`. InvalidUsage if it is
  /// not shareable.
  virtual Result<Fd> export_memory(const Memory& memory) = 0;
  /// Maps memory that another process exported, for access by `device`. `bytes` as in the
  /// exporter's Memory::bytes().
  virtual Result<Memory> import_memory(int device, Fd fd, size_t bytes) = 0;
  /// A name for the whole allocation that `pointer` lies in, by which other processes of the same
  /// user can map it. CudaError: it is neither of cudaMalloc nor of an exportable memory pool.
  virtual Result<AllocationName> name_allocation(const void* pointer) = 0;
  /// Maps an allocation that another process has named, `bytes` long, for kernels of `device`, at
  /// the beginning of the allocation. `pool`: the import of its memory pool, which has to outlive
  /// the mapping; null: it is of cudaMalloc. Whoever frees it, its memory is there as long as a
  /// mapping is (CUDA). Giving the mapping back may wait for all kernels of `device`.
  virtual Result<Memory> open_allocation(int device, const AllocationName& name, size_t bytes,
                                         const PoolImport* pool) = 0;
  /// Identifies the memory pool that the memory at `pointer` was allocated from; null: none. A pool
  /// that is made after another's end may have its identity.
  virtual const void* pool_of(const void* pointer) = 0;
  /// A descriptor by which another process of this machine can import the memory pool that the
  /// memory at `pointer` was allocated from. CudaError: the pool was not made to be exported.
  virtual Result<Fd> export_pool(const void* pointer) = 0;
  /// Allocations of the pool can be opened for kernels of `device`. May take 20 ms; waits for no
  /// kernel.
  virtual Result<PoolImport> import_pool(int device, Fd fd) = 0;
  /// Gives what `memory`, which is shareable or an import, holds back to its device; its addresses
  /// stay taken, but nothing may use them until the memory is resumed or given back. An import lets
  /// go of the exporter's memory.
  virtual Status suspend_memory(const Memory& memory) = 0;
  /// Zeroed memory again, at the addresses of suspended shareable memory and with the same access.
  /// Exports from before do not stand for it.
  virtual Status resume_memory(const Memory& memory) = 0;
  /// Resumes an import, suspended or not: maps the memory of `fd`, which is exported anew.
  virtual Status resume_import(const Memory& memory, Fd fd) = 0;
  /// Page-locked host memory as Allocations::allocate_host() makes it, which export_memory()
  /// exports to other processes.
  virtual Result<Memory> allocate_shared_host(size_t bytes) = 0;
  /// Host memory that another process exported, `bytes` as in its Memory::bytes(): page-locked
  /// here, too. May wait for kernels of this process.
  virtual Result<Memory> import_host(Fd fd, size_t bytes) = 0;

 protected:
  friend class PoolImport;
  ~Sharing() = default;
  virtual Status release_pool_import(void* handle) = 0;
};

}  // namespace niccolite::gpu
