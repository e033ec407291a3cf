// MemoryMap: every allocation, import and registration of the process, by address. It knows the
// kind and the owner of each, and whether a pointer is still good.
//
// Ordinary allocations are carved from the Arena. *Shareable* ones have a memfd of their own,
// because the descriptor that export_memory() hands out must begin with the memory and show nothing
// else. An allocation that was not made to be shared can still be found by another process of the
// same user by file and offset (cudaIpcGetMemHandle).
//
// Memory is promised at allocation and taken from the machine page by page when touched; a machine
// that cannot keep a promise kills the process. So an allocation is refused unless the machine (its
// free memory, and the limits of control groups) has room for all that this process was promised
// and has not touched yet, with a reserve left. Promises to other processes show up as they touch
// their memory.
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <vector>

#include "base/fd.h"
#include "base/host_memory.h"
#include "base/thread_annotations.h"
#include "gpu/memory.h"
#include "gpu/virtual/arena.h"
#include "gpu/virtual/error.h"

namespace niccolite::gpu::virtual_ {

enum class MemoryOrigin : uint8_t { Carved, Shareable, Imported, Registered, Mapped, Multicast };

/// The access of a copy or fill to a range of memory.
enum class Use : uint8_t { Read, Write };

struct MemoryProperties {
  std::byte* base = nullptr;
  size_t bytes = 0;
  PointerKind kind = PointerKind::Unknown;
  int device = -1;
  MemoryOrigin origin = MemoryOrigin::Carved;
  uint64_t id = 0;  // never used again
};

/// A device to allocate on: its memory is given back at once, so that there is nothing to keep.
struct MemoryPool {
  int device = 0;
  bool is_exportable = false;
};

/// Names memory to other processes of this machine and user: file `fd` of process `pid`, at
/// `offset`. `inode` and `node` (device number) tell whether it is still that file.
struct RemoteName {
  int32_t pid;
  int32_t fd;
  uint64_t node;
  uint64_t inode;
  uint64_t offset;
  uint64_t bytes;
};

/// The file that `name` means; invalid: its process has ended, or the file is closed there.
Fd open_named(const RemoteName& name);

/// May `bytes` from `offset` on of another process' memory be mapped: are they there, and will they
/// stay (the file is sealed against shrinking)?
bool can_be_mapped(const Fd& fd, size_t bytes, size_t offset);

class MulticastObject;

/// A place in the range of a multicast object, where stores of copy engines go.
struct MulticastPlace {
  std::shared_ptr<MulticastObject> object;
  size_t offset = 0;
};

class MemoryMap {
 public:
  /// `measure` returns the host's memory, now; without it the host has room for everything.
  MemoryMap(int devices, size_t bytes_per_device, std::function<HostMemory()> measure = nullptr);

  /// `kind` Device or Managed, or Host with device -1. Errors: InvalidValue (0 bytes),
  /// MemoryAllocation.
  Error allocate(int device, size_t bytes, PointerKind kind, bool shareable, MemoryProperties* out);
  /// Device memory of a pool.
  Error allocate_from(std::shared_ptr<const MemoryPool> pool, size_t bytes, MemoryProperties* out);
  /// The pool of the memory that `pointer` lies in; null: it is of none.
  std::shared_ptr<const MemoryPool> pool_of(const void* pointer) const;
  /// `device` -1: host memory. `loses_stores`: nobody else sees stores to it (PathFault).
  Error import(int device, Fd fd, size_t bytes, size_t offset, MemoryProperties* out,
               bool loses_stores = false);
  Error register_host(void* base, size_t bytes);
  /// Ends an allocation, import or registration, which must begin at `base`. InvalidValue: it does
  /// not.
  Error release(void* base, MemoryOrigin* origin = nullptr);

  /// Gives the pages of shareable memory back to the system, and its bytes to the device; it reads
  /// as zeros, here and where it is imported. Imports hold nothing. InvalidValue: neither.
  Error suspend(const void* base);
  /// MemoryAllocation: the device has no such room any more.
  Error resume(const void* base);

  Error export_memory(const void* base, Fd* out) const;  // InvalidValue: not shareable
  /// The file of the shareable memory that `pointer` lies in, and the whole of that memory.
  /// InvalidValue: in none.
  Error share(const void* pointer, Fd* file, MemoryProperties* whole) const;
  /// Enters memory that is mapped at `base`, which release() takes out and leaves mapped. A program
  /// mapped it when `file`, which begins with it, is given: then nothing may use it before
  /// protect(), and share() knows it. InvalidValue: other memory is there.
  Error enter_mapping(int device, std::byte* base, size_t bytes,
                      std::shared_ptr<const Fd> file = nullptr);
  /// Enters addresses that a program mapped a multicast object at: they can be written, once
  /// protect() says so, and never read. InvalidValue: other memory is there.
  Error enter_multicast(int device, std::byte* base, std::shared_ptr<MulticastObject> object);
  /// The place of `pointer` in the range of a multicast object; null object: it is in none.
  MulticastPlace multicast_at(const void* pointer) const;
  /// Says which uses are allowed of memory that a program mapped at `base`.
  void protect(const void* base, bool is_readable, bool is_writable);
  /// Addresses that a program keeps for mappings: where nothing is mapped, they are no memory.
  void reserve(const void* base, size_t bytes);
  void unreserve(const void* base);
  /// Takes memory without addresses from a device; `file`, which holds it, is known by its address
  /// until withdraw(). MemoryAllocation: the device has no such room.
  Error promise(int device, size_t bytes, const Fd* file);
  void withdraw(int device, size_t bytes, const Fd* file);
  Error name_for_others(const void* pointer, RemoteName* out) const;
  Error import_named(int device, const RemoteName& name, MemoryProperties* out);

  /// False for memory that this map does not know.
  bool find(const void* pointer, MemoryProperties* out) const;
  /// InvalidValue: null, reaching beyond its allocation, freed, reserved without memory, or mapped
  /// without leave for that use. Unknown memory counts as pageable memory of the host. `place`, if
  /// given, gets the place of `pointer` as multicast_at() returns it.
  Error check_range(const void* pointer, size_t bytes, bool* pageable, Use use = Use::Read,
                    MulticastPlace* place = nullptr) const;
  /// `free`: the bytes that an allocation could get now.
  void usage(int device, size_t* free, size_t* total) const;
  size_t live() const;

 private:
  struct Entry {
    MemoryProperties properties;
    size_t asked = 0;         // of a carved block
    Fd fd;                    // of a shareable one
    void* mapping = nullptr;  // of a shareable or imported one, with its length
    size_t mapped_bytes = 0;
    bool is_suspended = false;
    std::shared_ptr<const Fd> backing;  // of one that a program mapped
    std::shared_ptr<MulticastObject> multicast;
    bool is_readable = true;
    bool is_writable = true;
    std::shared_ptr<const MemoryPool> pool;
  };
  const Entry* lookup(const void* pointer) const REQUIRES(mutex_);
  static MulticastPlace place_in(const Entry& entry, const void* pointer);
  /// The shareable memory or import that begins there; null: none.
  Entry* find_shared(const void* base) REQUIRES(mutex_);
  bool overlaps(const void* base, size_t bytes) const REQUIRES(mutex_);
  bool is_reserved(const void* pointer) const REQUIRES(mutex_);
  Error check_mapped(const void* pointer, size_t bytes, Use use) const REQUIRES(mutex_);
  size_t& used(int device) REQUIRES(mutex_);
  size_t measure_room() const REQUIRES(mutex_);
  bool take_room(size_t bytes) REQUIRES(mutex_);
  Error make(int device, size_t bytes, PointerKind kind, bool shareable, MemoryProperties* out)
      REQUIRES(mutex_);
  const Entry& enter(Entry entry) REQUIRES(mutex_);
  /// Forgets registrations of earlier memory at these addresses, where memory has just been mapped:
  /// the program has unmapped the earlier memory without ending its registrations.
  void forget_registrations(const void* base, size_t bytes) REQUIRES(mutex_);

  const size_t bytes_per_device_;
  const std::function<HostMemory()> measure_;
  mutable std::shared_mutex mutex_;
  Arena arena_ GUARDED_BY(mutex_);
  std::map<uintptr_t, Entry> entries_ GUARDED_BY(mutex_);  // by base
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::vector<size_t> used_ GUARDED_BY(mutex_);              // per device, the last for the host
  size_t promised_ GUARDED_BY(mutex_) = 0;                   // the sum of used_
  std::set<const Fd*> files_ GUARDED_BY(mutex_);             // of entries_, and of promises
  size_t unmeasured_ GUARDED_BY(mutex_) = 0;                 // that may go without a new one
  std::map<uintptr_t, size_t> reserved_ GUARDED_BY(mutex_);  // bytes, by base
};

}  // namespace niccolite::gpu::virtual_
