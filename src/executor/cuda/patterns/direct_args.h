// The part of the parameters that stands behind the works, or in their place, for the kernels of
// programs of one step (direct.cuh) and of lists over buffers that all ranks reach
// (direct_list.cuh). Host and device include it.
#pragma once

#include "executor/cuda/launch/launch_args.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kMostDirectPeers = 7;
inline constexpr uint32_t kFewDirectPeers = 3;  // the most that kernels with more in flight hold
inline constexpr uint32_t kMostListChannels = 64;

/// An end of a connection, and its block.
struct DirectEnd {
  PortTask port;
  uint64_t block_at;  // bytes from the start of the input to the block that is sent; or of the
                      // output, to the place of a received block, when it is not reduced
};

/// Blocks of equal length that are sent to peers, copied, and reduced or received.
template <uint32_t kMostPeers>
struct DirectTask {
  uint32_t sends;
  uint32_t receives;         // in reduction order
  uint32_t source_position;  // a reduction's own block comes before the block of this receive
  uint16_t reads_own;        // the own block of the input is sent, copied or reduced
  uint16_t copies_own;       // it is copied to own_to
  uint64_t own_from;         // bytes from the start of the input
  uint64_t own_to;  // bytes from the start of the output; also where a reduction's result goes
  DirectEnd send[kMostPeers];
  DirectEnd receive[kMostPeers];
};

/// How the one length of all blocks is cut up: bytes.
struct BlockCut {
  uint64_t block;
  uint64_t channel;  // a channel's part of a block
  uint32_t chunk;    // a round of that
};

/// The parameters behind the one work of the kernels of collectives of one step.
template <uint32_t kMostPeers>
struct OneStepParams {
  BlockCut cut;
  DirectTask<kMostPeers> task;
};
static_assert(sizeof(WorkTask) + sizeof(OneStepParams<kMostDirectPeers>) <=
              sizeof(LaunchArgs::tables));

/// Shared memory of a task whose counters are in the host's memory (kInHost), as its first warp has
/// seen them.
template <uint32_t kMostPeers>
struct HostCounters {
  uint64_t sent[kMostPeers];      // ControlBlock::step of the connections that are sent over
  uint64_t credit[kMostPeers];    // ControlBlock::remote of the same
  uint64_t received[kMostPeers];  // ControlBlock::step of the connections for receiving
};
template <uint32_t kMostPeers>
inline constexpr uint32_t kHostCountersBytes = sizeof(HostCounters<kMostPeers>);

/// One operation of a list (Launch::is_list()), which its channel moves in chunks that fill a slot.
struct ListWork {
  const std::byte* input;
  std::byte* output;
  uint32_t count;  // elements of a block
  uint16_t tag;
  uint8_t width;  // as WorkTask's
  uint8_t stride_width;
};
static_assert(sizeof(ListWork) == 24);

/// A list of operations of one program, whose CTAs stand in columns of `parts`: column c does the
/// works c, c + columns, ..., and its part p has the chunks p, p + parts, ... of each of them. The
/// blocks of `task` are counted, not measured: operations differ in length.
template <uint32_t kMostPeers>
struct ListParams {
  uint16_t columns;
  uint16_t parts;
  uint32_t teams;                      // of a CTA, with as many threads each
  uint32_t chunk;                      // elements
  uint16_t rounds[kMostListChannels];  // of all works of a channel, which is a CTA
  DirectTask<kMostPeers> task;
  ListWork work[1];  // as many as there are
};

/// One operation of a list over buffers that all ranks reach (Launch::list_access).
struct DirectListWork {
  const std::byte* input;
  std::byte* output;
  const uint64_t* input_shifts;  // Buffers'
  const uint64_t* output_shifts;
  uint32_t count;  // elements of a block
  uint16_t tag;
  uint8_t input_is_open;  // 1: peers that see open buffers (PortTask::kOpens) see it where it is
  uint8_t output_is_open;
};
static_assert(sizeof(DirectListWork) == 40);

/// DirectListParams::tile_parts_bits: a part is a vec16 of each thread of a warp, or more.
inline constexpr uint16_t kMostTilePartsBits = 2;

/// CTA c handles the tiles from starts[c] up to starts[c + 1]; every rank moves its own tiles among
/// them. CTAs of the same number do the same works on all ranks, so they need not hear of other
/// CTAs.
template <uint32_t kMostPeers>
struct DirectListParams {
  uint16_t rank;
  uint16_t nranks;
  ListAccess access;
  uint16_t most_works;       // of a CTA
  uint16_t tile_parts_bits;  // a tile is cut into 2^bits parts, which a warp each moves
  uint32_t chunk;            // elements that fill a slot
  ListPosition starts[kMostListChannels + 1];
  DirectTask<kMostPeers> task;  // the connections alone
  DirectListWork work[1];       // as many as there are
};

/// The parameters of the kernels for lists. More than kParameterBytes: architectures from 7.0 and
/// drivers from CUDA 12.1 on allow them, and the kernels are built for later ones only.
inline constexpr size_t kListParameterBytes = 12 << 10;
struct ListArgs {
  LaunchHeader header;
  std::byte tables[kListParameterBytes - sizeof(LaunchHeader)];  // ListParams, DirectListParams
};
static_assert(sizeof(ListParams<kMostDirectPeers>) + (kMostListWorks - 1) * sizeof(ListWork) <=
              sizeof(ListArgs::tables));
static_assert(sizeof(DirectListParams<kMostDirectPeers>) +
                  (kMostDirectListWorks - 1) * sizeof(DirectListWork) <=
              sizeof(ListArgs::tables));

/// A message, and the threads that move it.
struct MessageTask {
  uint16_t first_thread;  // a multiple of kWarp
  uint16_t threads;       // a multiple of kWarp
  uint16_t barrier;       // Barrier id when there is more than one warp
  uint16_t work;
  DirectTask<1> task;  // with one send, or one receive, or a copy
};

struct MessagesParams {
  uint64_t messages_of_warps;  // four bits for each, so that looking them up takes no load
  MessageTask messages[kMaxWarps];

  static constexpr uint32_t kBits = 4;
  constexpr uint32_t message_of_warp(uint32_t warp) const {
    return static_cast<uint32_t>(messages_of_warps >> (kBits * warp)) & (kMaxWarps - 1);
  }
};
static_assert(kMaxWarps == 1u << MessagesParams::kBits && kMaxWarps * MessagesParams::kBits == 64);
static_assert(kMaxWarps * sizeof(WorkTask) + sizeof(MessagesParams) <= sizeof(LaunchArgs::tables));

}  // namespace niccolite::executor::cuda
