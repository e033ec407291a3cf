// KeptMemory: how much of a device's memory ranks of other processes keep mapped, and how much they
// may. Memory that its user frees stays taken until the last peer has closed its mapping. So as
// much memory must be free as is kept. Then a user who frees a buffer and at once allocates another
// one of its size gets it, however late the peers are.
//
//   memory of the device  |  the program's own  | kept |     free      |
//                                               kept <= free
//
// When less is free, the memory that was unused for longest is let go. Memory in use never gives
// way to other memory in use: mapping costs more than slots do.
//
// Users are the exports of all communicators of the process (buffer_exports.h); memory counts once,
// however many of them keep it. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "gpu/memory.h"

namespace niccolite::registry {

class KeptMemory {
 public:
  /// The one of `device`, for ever.
  static KeptMemory& of(gpu::Allocations& allocations, int device);
  KeptMemory(gpu::Allocations& allocations, int device)
      : allocations_(allocations), device_(device) {}

  /// Keeps the memory with this id (gpu::PointerInfo::id). False: it would be more than `most`
  /// bytes, or more than was free when that was measured last; then idle memory is let go at the
  /// next sweep. Asks the driver nothing, so that callers may hold locks.
  bool add(uint64_t id, size_t bytes, size_t most) EXCLUDES(mutex_);
  /// One keeper less.
  void remove(uint64_t id) EXCLUDES(mutex_);
  /// Somebody who keeps it has used it in this round (Housekeeper::round()).
  void note_use(uint64_t id, uint64_t round) EXCLUDES(mutex_);
  /// Measures the device's free memory. The driver may keep the caller waiting: callers hold no
  /// lock that a launch needs.
  void measure() EXCLUDES(mutex_);
  /// True for the first caller of a round, which then measures.
  bool begins(uint64_t round) EXCLUDES(mutex_);
  /// Chooses memory to be let go, once in each round, by the last measurement and the last uses.
  void choose(uint64_t round) EXCLUDES(mutex_);
  /// Has it been chosen?
  bool has_to_go(uint64_t id) const EXCLUDES(mutex_);
  /// Is so little free that freed memory should be noticed soon?
  bool is_scarce() const EXCLUDES(mutex_);
  size_t bytes() const EXCLUDES(mutex_);

 private:
  struct Entry {
    size_t bytes = 0;
    size_t keepers = 0;
    uint64_t last_use = 0;
    bool has_to_go = false;
  };
  void choose_oldest(size_t bytes, uint64_t newest) REQUIRES(mutex_);

  gpu::Allocations& allocations_;
  const int device_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);  // by id
  size_t kept_ GUARDED_BY(mutex_) = 0;
  size_t free_ GUARDED_BY(mutex_) = 0;      // of the device, when it was measured last
  size_t total_ GUARDED_BY(mutex_) = 0;     // of the device
  size_t wanted_ GUARDED_BY(mutex_) = 0;    // bytes, for which there was no room
  uint64_t begun_ GUARDED_BY(mutex_) = 0;   // a round
  uint64_t chosen_ GUARDED_BY(mutex_) = 0;  // a round
};

}  // namespace niccolite::registry
