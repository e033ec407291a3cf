// Arena: carves blocks of any size from large anonymous shared files (memfd), which cost address
// space but no memory until touched. One arena serves all virtual GPUs of the process, so that a
// thousand GPUs with a thousand allocations each need one descriptor and not a million.
//
// Invariant: free memory is zero. A freed block of kPunchBytes or more gives its pages back to the
// system at once, a smaller one is cleared. A segment whose last block is freed goes as a whole,
// and its addresses stay reserved for a while, so that a late access is a fault and a late use of
// the pointer is recognised.
// Thread safety: none; MemoryMap locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/fd.h"

namespace niccolite::gpu::virtual_ {

inline constexpr size_t kPage = 4096;

constexpr size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// How much of the machine's memory a memfd holds.
size_t touched_bytes(const Fd& memfd);

class Arena {
 public:
  struct Extent {  // where a block lies in its file
    int fd = -1;
    size_t offset = 0;
  };

  /// `bytes` > 0 of zeros, aligned to 256 bytes, or to a page from one page on.
  Result<std::byte*> allocate(size_t bytes);
  /// Gives back a block of allocate(), with the same size.
  void free(std::byte* block, size_t bytes);
  Extent place_of(const std::byte* block) const;
  /// Is `pointer` in a segment, or in one that was given back not long ago?
  bool owns(const void* pointer) const;
  /// Bytes of the machine's memory that the files hold: the pages that somebody has touched.
  size_t touched() const;
  size_t segments() const { return segments_.size(); }

  static constexpr size_t kSegmentBytes = size_t{1} << 30;
  static constexpr size_t kPunchBytes = size_t{64} << 10;
  static constexpr size_t kRetiredSegments = 64;

  ~Arena();
  Arena() = default;
  Arena(const Arena&) = delete;

 private:
  struct Segment {
    Fd fd;
    std::byte* base = nullptr;
    size_t bytes = 0;
    std::map<size_t, size_t> free_by_offset;
    std::set<std::pair<size_t, size_t>>
        free_by_size;  // (bytes, offset): smallest fitting block first

    void add_free(size_t offset, size_t size);
    void take_free(size_t offset, size_t size);
  };
  using Segments = std::map<const std::byte*, Segment>;  // by base

  Result<Segments::iterator> add_segment(size_t bytes);
  Segments::const_iterator find(const void* pointer) const;
  void retire(Segments::iterator segment);

  Segments segments_;
  struct Range {
    std::byte* base;
    size_t bytes;
  };
  std::deque<Range> retired_;
};

}  // namespace niccolite::gpu::virtual_
