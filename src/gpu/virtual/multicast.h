// MulticastObject: one range of addresses for memory of several virtual GPUs, as an NVSwitch offers
// it (cuMulticastCreate). A store to an address of the range reaches the memory of every GPU of the
// object's team; a load that reduces reads the memory of all.
//
//   range    0 ------------------------------ bytes
//   GPU 0    [ memory A       ][ memory B      ]     each GPU binds memory of its own to
//   GPU 1    [ memory C       ][ memory D      ]     parts of the range
//
// The object is a file (memfd) that the processes of the team map: it holds the team and a table of
// the bindings. A binding names the file of its memory (RemoteName); a process opens that file when
// it first asks for the object's memory. Nothing is mapped at the addresses of the range: whoever
// stores or loads asks a MulticastMemory for the memory behind an address.
//
// Trust: processes that have the descriptor can write the file. Each entry is checked before it is
// used: a bad table costs an error, not a fault.
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/virtual/error.h"
#include "gpu/virtual/memory.h"
#include "gpu/virtual/multicast_memory.h"

namespace niccolite::gpu::virtual_ {

class MulticastObject {
 public:
  /// Largest team, and most bindings of one object that can exist together.
  static constexpr int kMostDevices = 1024;
  static constexpr uint32_t kMostBindings = 4096;
  /// The name of the file, by which a process knows a descriptor that it imports.
  static constexpr const char* kFileName = "virtual-gpu-multicast";

  /// An object for a team of `devices`; each can bind `bytes` of memory. InvalidValue: a number out
  /// of range. OperatingSystem: no descriptor or no memory.
  static Error create(int devices, size_t bytes, std::shared_ptr<MulticastObject>* out);
  /// The object of another process. InvalidValue: `file` is not one of a MulticastObject.
  static Error import(Fd file, std::shared_ptr<MulticastObject>* out);
  MulticastObject(const MulticastObject&) = delete;

  const Fd& file() const { return file_; }
  int devices() const { return devices_; }
  size_t bytes() const { return bytes_; }

  /// Adds a device to the team, for the life of the object; `device` is the machine's number.
  /// InvalidValue: it has been added, or the team is complete.
  Error add(int device);
  bool is_complete() const;
  /// Waits until the team is complete; false at the deadline.
  bool await_team(Deadline deadline) const;

  /// Binds `memory` of `device` to the range from `offset` on. The file that `memory` names must
  /// stay open in its process until the binding ends. IllegalState: the team is not complete.
  /// InvalidDevice: the device is not of the team. InvalidValue: not within the range, or over
  /// another binding of the device. MemoryAllocation: the table is full.
  Error bind(int device, size_t offset, const RemoteName& memory);
  /// Ends a binding. InvalidValue: there is none with this offset and length.
  Error unbind(int device, size_t offset, size_t bytes);

  /// The memory that is bound now, mapped in this process. Costs a comparison while bindings stay
  /// as they are.
  std::shared_ptr<const MulticastMemory> memory();

 private:
  enum class Use : uint64_t { Free, Filling, Bound };
  struct Binding {
    int slot = -1;  // of the device in the team
    uint64_t offset = 0;
    RemoteName memory{};  // RemoteName::bytes is the binding's length
  };
  /// A binding in the file. `state` holds a Use in its low bits and counts its changes above them,
  /// so that a reader knows whether the words changed under its eyes.
  struct Entry {
    static constexpr size_t kWords = 7;
    std::atomic<uint64_t> state;
    std::atomic<uint64_t> words[kWords];
  };
  struct Table {
    uint64_t magic;
    uint64_t bytes;
    int32_t devices;
    std::atomic<int32_t> added;               // devices
    std::atomic<uint32_t> entries;            // that have ever been in use, from the first on
    std::atomic<uint64_t> changes;            // of bindings, counted once each is complete
    std::atomic<int32_t> team[kMostDevices];  // device + 1; 0: not added yet
    Entry bindings[kMostBindings];
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(std::atomic<int32_t>::is_always_lock_free);

  class BoundMemory;
  struct Piece;
  class Snapshot;

  MulticastObject(Fd file, Mapping mapping, int devices, size_t bytes);
  Table& table() const { return *static_cast<Table*>(mapping_.data()); }
  int slot_of(int device) const;
  std::span<Entry> entries() const;
  static Use use_of(uint64_t state) { return static_cast<Use>(state & 3); }
  static uint64_t next_state(uint64_t state, Use use);
  /// False: the entry is not Bound, changes at this moment, or says nonsense.
  bool read(const Entry& entry, Binding* out) const;
  Entry* claim();

  const Fd file_;
  const Mapping mapping_;
  const int devices_;
  const size_t bytes_;
  std::mutex mutex_;
  uint64_t seen_ GUARDED_BY(mutex_) = UINT64_MAX;  // Table::changes of current_
  std::shared_ptr<const Snapshot> current_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::gpu::virtual_
