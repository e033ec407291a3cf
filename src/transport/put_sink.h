// PutSink: takes the chunks that come from ranks of other machines and belong into this rank's
// windows: of puts (executor/protocol/put.h), and of the networking of kernels
// (operations/gin_chunk.h). No kernel of this rank takes part.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "executor/program.h"  // schedule::kReducerTag

namespace niccolite::transport {

/// The tag of the connections that carry puts, by Simple; below the tags of the network's reducer.
inline constexpr int kPutTag = schedule::kReducerTag - 1;
/// The tag of the connections that carry what kernels ask the network for, of the same shape.
inline constexpr int kGinTag = kPutTag - 1;
constexpr bool has_sink(int tag) { return tag == kPutTag || tag == kGinTag; }

/// Takes a chunk of rank `peer`'s, in order, on the thread of a proxy. False: this one and all that
/// follow are refused, and the connection stands still; who refuses says why.
using PutSink = std::function<bool(int peer, std::span<const std::byte> chunk)>;

struct PutSinks {
  PutSink puts{};  // null: no chunks come from other machines
  PutSink gin{};
};

}  // namespace niccolite::transport
