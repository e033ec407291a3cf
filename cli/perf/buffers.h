// Buffers: the pairs of send and receive buffers that one rank's operations use in turn
// (--buffers), of memory that --allocator names. Thread safety: belong to the rank's thread.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <span>

#include "cli/perf/user_memory.h"

namespace niccolite::perf {

struct BufferPair {
  UserMemory send, receive;
};

class Buffers {
 public:
  /// Pairs that are alive at a time with --buffers new, so that successive ones have other
  /// addresses.
  static constexpr size_t kFreshPairs = 3;
  /// Returns the most bytes that the buffers of a rank take at a time, if each has `bytes_each`.
  static size_t bytes(const Options& options, size_t bytes_each);

  Buffers() = default;
  /// As many pairs as the options say; none with --buffers new. `machine` and `libraries` outlive
  /// them, and so does `stream`, in which all of it is touched.
  static Result<Buffers> create(gpu::Machine& machine, const Options& options,
                                std::span<const Library> libraries, int device,
                                gpu::StreamHandle stream, size_t bytes_each);

  size_t bytes_each() const { return bytes_each_; }
  /// The pairs of a library. All libraries have the same, but of memory that they allocate
  /// themselves.
  const std::deque<BufferPair>& pairs(int library) const { return sets_[set_of(library)].pairs; }
  /// Returns the pair that the library's next operation uses.
  const BufferPair& current(int library) const;
  /// The number in pairs() of the pair that current() returns; not with --buffers new.
  size_t current_number(int library) const { return current_[static_cast<size_t>(library)]; }
  /// Goes on to the next pair. With --buffers new it is a fresh one, and the oldest is given back,
  /// with which the device has finished unless a stream orders its memory.
  Status advance(int library);
  /// A pair that nothing has used, which current() returns until give_back_fresh().
  Status take_fresh(int library);
  void give_back_fresh(int library) { sets_[set_of(library)].borrowed.reset(); }

 private:
  struct Set {
    MemorySource source;
    std::deque<BufferPair> pairs;
    std::optional<BufferPair> borrowed;
  };
  size_t set_of(int library) const { return sets_.size() > 1 ? static_cast<size_t>(library) : 0; }
  Result<BufferPair> allocate(const MemorySource& source) const;

  std::deque<Set> sets_;                // one, or one per library
  std::array<size_t, 2> current_ = {};  // by library; unused with --buffers new
  size_t bytes_each_ = 0;
  bool is_fresh_ = false;      // --buffers new
  bool is_shareable_ = false;  // of machine memory for windows
};

}  // namespace niccolite::perf
