// Memory of a GPU that cores do not reach, as real GPUs have it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "transport/net/network.h"

namespace niccolite::transport::net {

/// Its addresses can be neither read nor written; its bytes are elsewhere.
class Hidden final : public DirectMemory {
 public:
  explicit Hidden(size_t bytes) : content(bytes) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    bytes_ = bytes;
  }
  ~Hidden() override { munmap(data_, bytes_); }
  Status store(std::byte* to, const void* from, size_t bytes) const override {
    std::memcpy(const_cast<std::byte*>(content.data()) + (to - data_), from, bytes);
    return {};
  }
  Status load(void* to, const std::byte* from, size_t bytes) const override {
    std::memcpy(to, content.data() + (from - data_), bytes);
    return {};
  }

  std::vector<std::byte> content;
};

}  // namespace niccolite::transport::net
