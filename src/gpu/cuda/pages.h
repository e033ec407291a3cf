// Whole pages of the host, in which the driver gives memory away as a dma-buf. Thread safety: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace niccolite::gpu::cuda {

struct PageRange {
  uintptr_t begin = 0;
  size_t bytes = 0;
};

/// Returns the pages that the `bytes` at `memory` lie in. Nothing: they are not all in the
/// allocation of `whole_bytes` at `whole`, or a page of theirs is not.
inline std::optional<PageRange> pages_around(uintptr_t memory, size_t bytes, uintptr_t whole,
                                             size_t whole_bytes, size_t page) {
  const uintptr_t begin = memory / page * page;
  if (begin < whole || memory - whole > whole_bytes || bytes > whole_bytes - (memory - whole))
    return std::nullopt;
  const size_t rounded = (memory - begin + bytes + page - 1) / page * page;
  if (rounded > whole_bytes - (begin - whole)) return std::nullopt;
  return PageRange{begin, rounded};
}

}  // namespace niccolite::gpu::cuda
