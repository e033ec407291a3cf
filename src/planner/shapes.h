// Shapes: the memory of connections, by protocol. Constant data.
#pragma once

#include <array>

#include "executor/protocol/fifo.h"

namespace niccolite::planner {

/// The most channels of an operation (NCCL_MAX_CTAS).
inline constexpr int kMostChannels = 64;

/// Shapes of connections, by protocol.
using Shapes = std::array<executor::FifoShape, executor::kProtocols>;

}  // namespace niccolite::planner
