// What stands behind the one work in the parameters of the two-shot kernels (two_shot.cuh), and
// what these keep in shared memory. Host and device include it.
#pragma once

#include "executor/cuda/launch_args.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kMostTwoShotPeers = kMostDirectPeers;
inline constexpr uint32_t kFewTwoShotPeers = kFewDirectPeers;

/// What the ends of the four connections with a peer are for.
enum class TwoShotEnd : uint32_t {
  Push,     // sends a block to its owner
  Operand,  // receives what the peer pushes here
  Result,   // sends the folded block
  Gather,   // receives a folded block from its owner
};
inline constexpr uint32_t kTwoShotEnds = 4;

struct TwoShotBlock {
  uint64_t at;     // bytes from the start of a buffer
  uint64_t bytes;  // 0: the buffer has nothing of it
};

/// Peers stand in an order of its own for each kind of end: that of the program, which is that of
/// the fold for operands, and lets all ranks together address each peer at a different time for the
/// others.
struct TwoShotImage {
  PortTask ports[kTwoShotEnds * kMostTwoShotPeers];  // [end][peers]
  TwoShotBlock pushed[kMostTwoShotPeers];
  TwoShotBlock gathered[kMostTwoShotPeers];
  TwoShotBlock own;
  uint32_t peers;
  uint32_t source_position;  // the own operand is folded before that of this peer
  uint32_t reciprocal;       // a little more than 2^16 / peers: x * this >> 16 is x / peers for
                             // numbers of warps
};
static_assert(sizeof(WorkTask) + sizeof(TwoShotImage) <= sizeof(LaunchArgs::tables));

/// Shared memory: where the ends stand, as in TwoShotImage::ports.
struct alignas(16) TwoShotPort {
  std::byte* slots;  // of this channel
  uint64_t base;     // step of the operation's first use
};
struct TwoShotPorts {
  TwoShotPort ports[kTwoShotEnds * kMostTwoShotPeers];
  uint64_t credit[kTwoShotEnds * kMostTwoShotPeers];  // ControlBlock::remote when last looked at
};

}  // namespace niccolite::executor::cuda
