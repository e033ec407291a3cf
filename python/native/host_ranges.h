// HostRanges: memory of the host that virtual GPUs use in place. The library must know such memory
// (cudaHostRegister), once, and without overlaps. But calls that are in flight at the same time may
// use overlapping parts of one array: so an unknown part becomes a new segment. Each segment counts
// its users, and goes with the last.
// Thread safety: any thread, with or without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace niccolite::python {

class HostRanges {
 public:
  static HostRanges& instance();

  /// Makes [data, data + bytes) reachable; bytes > 0. False: it cannot be.
  bool acquire(void* data, size_t bytes);
  /// Releases the range of one acquire() with the same arguments.
  void release(void* data, size_t bytes);

 private:
  struct Segment {
    uintptr_t end;
    int users;
    bool is_ours;  // else the user has registered it
  };
  bool enter(uintptr_t begin, uintptr_t end);
  void release_segments(uintptr_t begin, uintptr_t end);

  std::mutex mutex_;
  std::map<uintptr_t, Segment> segments_;  // by begin, disjoint; under mutex_
};

}  // namespace niccolite::python
