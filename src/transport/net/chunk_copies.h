// ChunkCopies: the data of the chunks that an LL connection has on its way between machines. They
// lack the flags that stand between them in a slot (executor/protocol/ll.h). Each slot has a place
// of its own. A channel's memory is made when it is first used. Thread safety: the thread of the
// end's proxy.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/protocol/fifo.h"

namespace niccolite::transport::net {

class ChunkCopies {
 public:
  explicit ChunkCopies(const executor::FifoShape& shape)
      : depth_(shape.depth),
        chunk_bytes_(executor::data_bytes(executor::Protocol::LL, shape.slot_bytes)),
        channels_(shape.channels) {}

  /// Whole words, even if the chunk is of fewer bytes.
  std::byte* of(uint32_t channel, uint64_t step) {
    std::unique_ptr<std::byte[]>& memory = channels_[channel];
    if (memory == nullptr) memory = std::make_unique<std::byte[]>(depth_ * chunk_bytes_);
    return memory.get() + static_cast<size_t>(step & (depth_ - 1)) * chunk_bytes_;
  }

 private:
  const uint64_t depth_;
  const size_t chunk_bytes_;
  std::vector<std::unique_ptr<std::byte[]>> channels_;
};

}  // namespace niccolite::transport::net
