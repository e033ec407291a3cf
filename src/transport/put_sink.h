// PutSink: takes the chunks of puts that come from ranks of other machines
// (executor/protocol/put.h) and brings their bytes to this rank's windows. No kernel of this rank
// takes part.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "executor/program.h"  // schedule::kReducerTag

namespace niccolite::transport {

/// The tag of the connections that carry puts, by Simple; below the tags of the network's reducer.
inline constexpr int kPutTag = schedule::kReducerTag - 1;

/// Takes a chunk of rank `peer`'s, in order, on the thread of a proxy. False: this one and all that
/// follow are refused, and the connection stands still; who refuses says why.
using PutSink = std::function<bool(int peer, std::span<const std::byte> chunk)>;

}  // namespace niccolite::transport
