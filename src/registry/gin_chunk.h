// GinChunk: the header of what the networking of kernels (gin.h) sends to a rank of another
// machine. Chunks go over a connection of their own, with slots as for puts
// (executor/protocol/put.h), and arrive in the order in which they were sent. Pure.
//
//   chunk    GinChunk | unused | bytes, from executor::kPutDataAt on
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/protocol/put.h"

namespace niccolite::registry {

struct GinChunk {
  enum class Kind : uint32_t {
    Data,            // bytes for `window`, from `offset` on
    Signal,          // adds `amount` to `signal` of `context`
    SignalInMemory,  // adds `amount` to the word at `offset` of `window`
    Get,             // asks for `amount` bytes of `window`, from `offset` on
    GetData,         // bytes of the answer to `request`, from `offset` on
  };
  Kind kind = Kind::Data;
  uint32_t bytes = 0;         // behind the header
  uint64_t communicator = 0;  // the device communicator's number, the same on all ranks
  uint64_t window = 0;        // registry::Window::number()
  uint64_t offset = 0;
  uint64_t amount = 0;
  uint64_t request = 0;  // of a get: the asker's number for it
  uint32_t context = 0;
  uint32_t signal = 0;
};
static_assert(sizeof(GinChunk) == 56 && sizeof(GinChunk) <= executor::kPutDataAt);

}  // namespace niccolite::registry
