// TeamRange: a multicast team of GPUs (gpu/multicast.h), with the addresses of its range for one of
// them. Communicators whose ranks on this machine are the same share it: each has a part of the
// range, to which it binds memory of its own, so that none waits for another.
//
//   range       [part] part_bytes, then room for windows
//
// All ranks of the team use the same part for a communicator. A part is free again once every rank
// has given it back (Team::make()). Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "gpu/multicast.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

class TeamRange {
 public:
  static constexpr int kMostParts = 64;
  struct Layout {
    int members = 0;
    int parts = 1;          // at most kMostParts
    size_t part_bytes = 0;  // each; rounded up to what can be bound
    size_t window_bytes = 0;
  };
  /// Lays the range out; nothing is made yet.
  static Result<std::shared_ptr<TeamRange>> plan(gpu::Machine& machine, int device,
                                                 const Layout& layout);
  TeamRange(const TeamRange&) = delete;

  size_t bytes() const { return bytes_; }
  int parts() const { return layout_.parts; }
  size_t part_bytes() const { return layout_.part_bytes; }
  size_t windows_begin() const { return part_bytes() * static_cast<size_t>(parts()); }
  /// As many bytes as hold `bytes` and can be bound.
  size_t whole(size_t bytes) const { return (bytes + unit_ - 1) / unit_ * unit_; }

  /// The life of a multicast team: made by one process, and imported by the others.
  Result<Fd> create();
  Status import(Fd descriptor);
  Status join();
  /// Once some memory is bound.
  Status map();

  std::byte* at(size_t offset) const { return mapping_.data() + offset; }
  Status bind(size_t offset, const void* memory, size_t bytes);
  Status unbind(size_t offset, size_t bytes);

  /// The parts that this rank uses, a bit each.
  uint64_t parts_in_use() const EXCLUDES(mutex_);
  /// Takes a part for this rank; false: it is in use.
  bool take_part(int part) EXCLUDES(mutex_);
  void give_part_back(int part) EXCLUDES(mutex_);

 private:
  TeamRange(gpu::Machine& machine, int device) : machine_(machine), device_(device) {}

  gpu::Machine& machine_;
  const int device_;
  Layout layout_;
  size_t unit_ = 1;   // of offsets and of bound memory
  size_t bytes_ = 0;  // of the range
  gpu::MulticastTeam team_;
  gpu::MulticastMapping mapping_;  // ends before the team
  mutable std::mutex mutex_;
  uint64_t in_use_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite::transport
