// Memory of real GPUs. No core reaches it, and its dma-bufs cannot be mapped, so that the driver
// that the program has loaded copies it. A region of such memory has a shadow of the same length in
// memory of the host. Bytes that a request sends are copied to the shadow before, and bytes that
// have come are copied from it at once. Thread safety: the caller has the context's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vverbs {

/// Is that memory of a GPU, as the program's driver says? False also where there is none.
bool is_memory_of_gpu(uint64_t address, size_t bytes);
/// Both wait for the copy alone, and for no kernel. False: the driver refuses.
bool copy_from_gpu(void* to, uint64_t from, size_t bytes);
bool copy_to_gpu(uint64_t to, const void* from, size_t bytes);

}  // namespace vverbs
