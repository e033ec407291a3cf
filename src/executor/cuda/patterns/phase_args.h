// The parameters of the phase kernels (phase_kernel.cuh) behind the one work, and their contents of
// shared memory. Host and device include it.
#pragma once

#include "executor/cuda/patterns/direct_args.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kMostPhasePeers = kMostDirectPeers;
inline constexpr uint32_t kFewPhasePeers = kFewDirectPeers;

/// The uses of a rank's connections (lowering/phases.h).
enum class PhaseEnd : uint32_t {
  Send,     // sends a block of the input
  Operand,  // receives an operand of the reduction
  Result,   // sends the result
  Store,    // receives a block as it is
};
inline constexpr uint32_t kPhaseEnds = 4;

struct PhaseBlock {
  uint64_t at;     // bytes from the start of a buffer
  uint64_t bytes;  // 0: the buffer has nothing of it
};

/// For each kind of end, peers stand in an order of its own. Operands stand in the order of the
/// program, which is the order of the reduction. The orders of the others let all ranks together
/// address each peer at a different time.
struct PhaseParams {
  PortTask ports[kPhaseEnds * kMostPhasePeers];  // [end][peers]
  PhaseBlock sent[kMostPhasePeers];
  PhaseBlock stored[kMostPhasePeers];
  PhaseBlock source;  // the own operand, of the input
  PhaseBlock target;  // of the output
  uint32_t peers;     // the most of any kind of end
  uint32_t sends;
  uint32_t operands;  // that are received
  uint32_t results;
  uint32_t stores;
  uint32_t source_position;   // the own operand comes before the operand of this peer
  uint32_t send_reciprocal;   // a little more than 2^16 / sends: x * this >> 16 is x / sends for
  uint32_t store_reciprocal;  // numbers of warps; the same of stores
  uint32_t stores_result;     // 1: to the output, too
};
static_assert(sizeof(WorkTask) + sizeof(PhaseParams) <= sizeof(LaunchArgs::tables));

/// Shared memory: where the ends stand, as in PhaseParams::ports.
struct alignas(16) PhasePort {
  std::byte* slots;  // of this channel
  uint64_t base;     // step of the operation's first use
};
struct PhasePorts {
  PhasePort ports[kPhaseEnds * kMostPhasePeers];
  uint64_t credit[kPhaseEnds * kMostPhasePeers];  // ControlBlock::remote when last looked at
};

}  // namespace niccolite::executor::cuda
