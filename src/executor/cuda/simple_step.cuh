// One instruction by the Simple protocol: plain bytes in slots, counters for their arrival, which
// the service warp looks at and advances (service_warp.cuh).
//   wait   one thread per port waits for the service warp's word, and writes the slot's address to
//          shared memory;
//   fold   all threads of the lane, packs of 16 bytes, several in flight; where not all addresses
//          are aligned to packs, as rows of a warp (rows.cuh);
//   done   one thread per port tells the service warp.
// A lane barrier stands between them. The barriers also carry the order of the PTX memory model:
// [seen] -> barrier -> loads of all threads, and loads and stores of all threads -> barrier ->
// [done].
#pragma once

#include "executor/cuda/cta.cuh"
#include "executor/cuda/rows.cuh"
#include "executor/cuda/service_warp.cuh"

namespace niccolite::executor::cuda {

inline constexpr int kCopyUnroll = 8;
/// Rows of packs (rows.cuh) that a warp has in flight, fewer than packs of an aligned chunk, since
/// shifts want registers: found by the spills that one row more brings. Where a kernel folds, too,
/// there is less room for copies.
template <typename Operation, bool kFolds>
constexpr int rows_in_flight() {
  if constexpr (!Operation::kReduces) {
    return 5;
  } else {
    const bool is_wide = sizeof(typename Operation::Accumulator) == 8;
    return kFolds ? (is_wide ? 1 : 2) : (is_wide ? 2 : 3);
  }
}

/// What the fold of one instruction works on. Operands stand in fold order.
struct SimpleMove {
  std::byte* const* operands;  // addresses
  std::byte* const* sends;
  std::byte* target;  // or null
  uint32_t operand_count;
  uint32_t send_count;
  uint32_t source_index;  // of the local operand, or kNoSource
  uint32_t bytes;
  bool is_aligned;  // all addresses, to packs
  bool scales_input;
  bool scales_result;
};
inline constexpr uint32_t kNoSource = ~uint32_t{0};

/// Ports are numbered receives first, then sends.
struct PortsOfInstruction {
  const PortUse* receives;
  const PortUse* sends;
  uint32_t receive_count;
  uint32_t count;

  __device__ __forceinline__ PortsOfInstruction(const Cta& cta,
                                                const CompactInstruction& instruction)
      : receives(cta.uses + instruction.receive),
        sends(cta.uses + instruction.send),
        receive_count(instruction.receive_count),
        count(uint32_t{instruction.receive_count} + instruction.send_count) {}

  __device__ __forceinline__ bool is_send(uint32_t i) const { return i >= receive_count; }
  __device__ __forceinline__ PortUse use(uint32_t i) const {
    return is_send(i) ? sends[i - receive_count] : receives[i];
  }
};

/// What a thread moves at once: a pack, or an element.
template <typename Piece>
struct PieceAccess {
  static constexpr int kGranules = 1;
  __device__ __forceinline__ static Piece load(const std::byte* address) {
    return ptx::load<Piece>(address);
  }
  __device__ __forceinline__ static void store(std::byte* address, Piece piece) {
    ptx::store<Piece>(address, piece);
  }
  __device__ __forceinline__ static uint64_t granule(Piece piece, int) { return piece; }
  __device__ __forceinline__ static void set_granule(Piece& piece, int, uint64_t granule) {
    piece = static_cast<Piece>(granule);
  }
};
template <>
struct PieceAccess<Pack> {
  static constexpr int kGranules = 2;
  __device__ __forceinline__ static Pack load(const std::byte* address) {
    return ptx::load_pack(address);
  }
  __device__ __forceinline__ static void store(std::byte* address, const Pack& pack) {
    ptx::store_pack(address, pack);
  }
  __device__ __forceinline__ static uint64_t granule(const Pack& pack, int i) {
    return pack.half[i];
  }
  __device__ __forceinline__ static void set_granule(Pack& pack, int i, uint64_t granule) {
    pack.half[i] = granule;
  }
};

// Which pieces of a chunk a thread has in flight. Loaded is what it keeps of an operand until
// settle() makes pieces of it: all that is loaded is on its way before any of it is waited for.

/// kUnroll pieces of an aligned chunk: `first`, first + stride, ..., those below `end` when
/// kChecked, counted from byte `from`. Neighbours in a warp move neighbours in memory.
template <typename PieceType, int kUnroll, bool kChecked>
struct PiecesApart {
  using Piece = PieceType;
  static constexpr int kCount = kUnroll;
  struct Loaded {
    Piece packs[kUnroll];
  };
  uint32_t from;
  uint32_t first;
  uint32_t stride;
  uint32_t end;

  __device__ __forceinline__ bool has(int i) const { return !kChecked || first + i * stride < end; }
  // (Of 64 bits, so that where the stride is a constant so are the distances.)
  __device__ __forceinline__ size_t at(int i) const {
    return from + size_t{first} * sizeof(Piece) + size_t(i) * stride * sizeof(Piece);
  }
  __device__ __forceinline__ void load(const std::byte* operand, Loaded& loaded) const {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (has(i)) loaded.packs[i] = PieceAccess<Piece>::load(operand + at(i));
    }
  }
  __device__ __forceinline__ void settle(const std::byte*, Loaded&) const {}
  __device__ __forceinline__ void store(std::byte* chunk, const Piece (&pieces)[kUnroll]) const {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (has(i)) PieceAccess<Piece>::store(chunk + at(i), pieces[i]);
    }
  }
};

/// kRows rows of packs, the first `count` of them, that a warp has of a chunk whose addresses are
/// anything, from byte `from` on.
template <typename Element, int kRows>
struct RowsOfPacks {
  using Piece = Pack;
  static constexpr int kCount = kRows;
  using Loaded = PackRows<kRows>;
  uint32_t from;
  uint32_t count;

  __device__ __forceinline__ void load(const std::byte* operand, Loaded& loaded) const {
    load_rows<kRows>(operand + from, count, loaded);
  }
  __device__ __forceinline__ void settle(const std::byte* operand, Loaded& loaded) const {
    settle_rows<kRows>(operand + from, loaded);
  }
  __device__ __forceinline__ void store(std::byte* chunk, const Pack (&packs)[kRows]) const {
    store_rows<Element, kRows>(chunk + from, count, packs);
  }
};

/// The pieces of all operands, folded; stored to all destinations.
template <typename Operation, bool kFolds, typename Pieces>
__device__ __forceinline__ void move_pieces(const Cta& cta, const SimpleMove& move,
                                            const Pieces& pieces) {
  using Access = PieceAccess<typename Pieces::Piece>;
  constexpr int kGranules = Access::kGranules;
  constexpr int kCount = Pieces::kCount;
  using Loaded = typename Pieces::Loaded;
  const auto settle = [&](uint32_t k, Loaded& loaded) {
    pieces.settle(move.operands[k], loaded);
    if constexpr (Operation::kReduces) {
      if (!move.scales_input || k != move.source_index) return;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
          Access::set_granule(loaded.packs[i], g,
                              scale_input<Operation>(cta, Access::granule(loaded.packs[i], g)));
        }
      }
    }
  };
  // Set, as everywhere that registers are loaded on a condition: what the condition might leave as
  // it was would take its registers in all of the loop around, and before it.
  Loaded result = {};
  pieces.load(move.operands[0], result);
  if constexpr (kFolds) {
    typename Operation::Values values[kCount][kGranules];
    Loaded next = {};
    if (move.operand_count > 1) pieces.load(move.operands[1], next);
    settle(0, result);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        values[i][g] = Operation::widen(Access::granule(result.packs[i], g));
      }
    }
#pragma unroll 1
    for (uint32_t k = 1; k < move.operand_count; ++k) {
      result = next;
      // On its way while this one is folded.
      if (k + 1 < move.operand_count) pieces.load(move.operands[k + 1], next);
      settle(k, result);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
          Operation::accumulate(values[i][g],
                                Operation::widen(Access::granule(result.packs[i], g)));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        Access::set_granule(result.packs[i], g,
                            Operation::finish(cta.header, values[i][g], move.scales_result));
      }
    }
  } else {
    settle(0, result);
  }
  // Not unrolled: the compiler's copies of the loop cost registers, and save nothing of the stores.
#pragma unroll 1
  for (uint32_t s = 0; s < move.send_count; ++s) pieces.store(move.sends[s], result.packs);
  if (move.target != nullptr) pieces.store(move.target, result.packs);
}

/// Bytes of the chunk before the first address of its first destination that is a multiple of `to`.
__device__ __forceinline__ uint32_t bytes_before(const SimpleMove& move, uint32_t to) {
  const std::byte* first = move.send_count != 0 ? move.sends[0] : move.target;
  return (to - bytes_into_line(first) % to) % to;
}

/// From pack `first` of an aligned chunk on, as many times kUnroll packs of every thread as there
/// are: returns the first pack that is left. A warp's lie side by side, so that all their places
/// are known but for one.
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ uint32_t aligned_tiles(const Cta& cta, const LaneThreads& lane,
                                                  const SimpleMove& move, uint32_t first,
                                                  uint32_t end) {
  const uint32_t tile = kUnroll * lane.size;
  const uint32_t in_tile = lane.rank / kWarp * kWarp * kUnroll + lane.rank % kWarp;
  for (; first + tile <= end; first += tile) {
    move_pieces<Operation, kFolds>(
        cta, move, PiecesApart<Pack, kUnroll, false>{0, first + in_tile, kWarp, end});
  }
  return first;
}

/// Byte by byte, an element a thread of the warp: the first `head` bytes of the chunk, and all from
/// byte `tail` on. Together they are less than two packs.
template <typename Operation, bool kFolds>
__device__ __forceinline__ void move_ends(const Cta& cta, const SimpleMove& move, uint32_t head,
                                          uint32_t tail) {
  using Piece = typename PieceOf<sizeof(typename Operation::Element)>::Type;
  const uint32_t in_ends = thread_of_warp() * sizeof(Piece);
  const uint32_t at = in_ends < head ? in_ends : tail + (in_ends - head);
  if (at >= move.bytes) return;
  move_pieces<Operation, kFolds>(cta, move, PiecesApart<Piece, 1, false>{at, 0, 0, 1});
}

/// A chunk whose addresses are all aligned to packs. Without arithmetic to do, a warp stores whole
/// lines of 128 bytes: one whose stores lie across them sends twice as many packets over a link.
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ void move_aligned(const Cta& cta, const LaneThreads& lane,
                                             const SimpleMove& move) {
  const uint32_t end = move.bytes / kPack;
  uint32_t first = 0;
  if constexpr (!Operation::kReduces) {
    const uint32_t before_line = bytes_before(move, kLine) / kPack;
    first = before_line < end ? before_line : end;
    if (lane.rank < first) {  // a line has fewer packs than a lane threads
      move_pieces<Operation, kFolds>(cta, move,
                                     PiecesApart<Pack, 1, false>{0, lane.rank, 0, first});
    }
  }
  first = aligned_tiles<Operation, kUnroll, kFolds>(cta, lane, move, first, end);
  if (first + lane.rank < end) {
    move_pieces<Operation, kFolds>(
        cta, move, PiecesApart<Pack, kUnroll, true>{0, first + lane.rank, lane.size, end});
  }
  if (lane.rank < kWarp) move_ends<Operation, kFolds>(cta, move, 0, end * kPack);
}

/// A chunk whose addresses may be anything: packs that are aligned at the first destination, and as
/// rows of a warp wherever else they are not. (A first destination on a link gets whole lines, as
/// above.)
template <typename Operation, int kRows, bool kFolds>
__device__ __forceinline__ void move_rows(const Cta& cta, const LaneThreads& lane,
                                          const SimpleMove& move) {
  using Rows = RowsOfPacks<typename Operation::Element, kRows>;
  const uint32_t before = bytes_before(move, kPack);
  const uint32_t head = before < move.bytes ? before : move.bytes;
  const uint32_t packs = (move.bytes - head) / kPack;
  const uint32_t warps = lane.size / kWarp;
  const uint32_t warp = lane.rank / kWarp;
  const uint32_t tile = warps * kRows * kWarp;
  const auto move_warps = [&](uint32_t pack, uint32_t count) {
    move_pieces<Operation, kFolds>(cta, move, Rows{head + pack * kPack, count});
  };
  for (uint32_t first = 0; first < packs;) {
    uint32_t left = packs - first;
    if constexpr (!Operation::kReduces) {
      const uint32_t before_line = bytes_before(move, kLine) / kPack;
      if (first == 0 && left > tile && before_line != 0) left = before_line;
    }
    // What is left is shared out among all warps.
    const uint32_t rows = left >= tile ? kRows : (left + warps * kWarp - 1) / (warps * kWarp);
    const uint32_t most = rows * kWarp;
    const uint32_t own = warp * most;
    if (own < left) move_warps(first + own, left - own < most ? left - own : most);
    first += left < tile ? left : tile;
  }
  if (warp == warps - 1) move_ends<Operation, kFolds>(cta, move, head, head + packs * kPack);
}

/// The whole chunk.
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ void simple_chunk(const Cta& cta, const LaneThreads& lane,
                                             const SimpleMove& move) {
  if (move.is_aligned) {
    move_aligned<Operation, kUnroll, kFolds>(cta, lane, move);
  } else {
    move_rows<Operation, rows_in_flight<Operation, kFolds>(), kFolds>(cta, lane, move);
  }
}

/// What a lane's threads share for one instruction, written by some between two barriers (at
/// LaneTask::pointers): this, then operands in fold order, then slots to send.
struct SimplePlan {
  const std::byte* live;  // null once aborted
  std::byte* target;      // or null
  uint64_t left;          // bytes from the chunk to the end of the block, of a lane with only one
                          // instruction
  uint64_t bytes;         // of the chunk
  uint64_t is_loose;      // 1: something that a peer has offered is not aligned to packs
};
static_assert(sizeof(SimplePlan) == kPlanPointers * sizeof(std::byte*));

__device__ __forceinline__ SimplePlan& plan_at(std::byte** pointers) {
  return *reinterpret_cast<SimplePlan*>(pointers);
}

/// By one thread: the plan's local addresses and length. They move on from round to round when the
/// lane has no other instruction; to work them out anew takes half a microsecond, in which nothing
/// is moved.
template <typename Operation>
__device__ __forceinline__ void plan_transfer(const Cta& cta, const CompactInstruction& instruction,
                                              uint32_t round, bool is_only, SimplePlan& plan,
                                              std::byte*& source) {
  const uint32_t element_bytes = Operation::element_bytes(cta.header);
  const uint64_t chunk = uint64_t{cta.work->partition.chunk} * element_bytes;
  if (is_only && round != 0) {
    plan.left = plan.left > chunk ? plan.left - chunk : 0;
    plan.bytes = plan.left < chunk ? plan.left : chunk;
    if (plan.target != nullptr) plan.target += chunk;
    if (instruction.source != Place::None) source += chunk;
    return;
  }
  const Transfer transfer = transfer_of<Operation>(cta, instruction, round);
  plan.target = transfer.target;
  plan.bytes = transfer.bytes;
  plan.left =
      transfer.bytes == 0
          ? 0
          : cta.work->partition.count_from(instruction.chunk_block, cta.channel()) * element_bytes;
  if (instruction.source != Place::None) source = const_cast<std::byte*>(transfer.source);
}

/// All threads of the lane; `is_only`: it has no other instruction. False: aborted, in all threads
/// alike.
template <typename Operation>
__device__ __forceinline__ bool simple_step(const Cta& cta, const LaneThreads& lane,
                                            const CompactInstruction& instruction, uint32_t round,
                                            bool is_only, std::byte** pointers) {
  const PortsOfInstruction ports(cta, instruction);
  const bool has_source = instruction.source != Place::None;
  SimplePlan& plan = plan_at(pointers);
  std::byte** operands = pointers + kPlanPointers;
  std::byte** sends = operands + instruction.receive_count + has_source;
  const uint32_t source_index = instruction.source_position < instruction.receive_count
                                    ? instruction.source_position
                                    : instruction.receive_count;
  // Another warp than those that wait for ports, if there is one.
  if (lane.rank == (lane.size > kWarp ? kWarp : 0)) {
    plan_transfer<Operation>(cta, instruction, round, is_only, plan, operands[source_index]);
  }
  bool live = true;
  for (uint32_t i = lane.rank; i < ports.count; i += lane.size) {
    const PortUse use = ports.use(i);
    const PortState& port = cta.ports[use.port];
    const uint64_t step = step_of(port, use, round);
    live = live && wait_until_open(cta, port, step);
    std::byte* chunk = chunk_at<Operation>(cta, port, use, round);
    if (reinterpret_cast<uintptr_t>(chunk) % kPack != 0) plan.is_loose = 1;
    if (ports.is_send(i)) {
      sends[i - ports.receive_count] = chunk;
    } else {
      operands[i + (has_source && i >= instruction.source_position)] = chunk;
    }
  }
  if (!live) plan.live = nullptr;
  lane.barrier();
  // Written before this barrier of an earlier or of this instruction, never between two: the same
  // for all threads.
  if (plan.live == nullptr) return false;

  const uint32_t flags = Operation::kReduces ? cta.header.flags : 0;
  const SimpleMove move{operands,
                        sends,
                        plan.target,
                        uint32_t{instruction.receive_count} + has_source,
                        instruction.send_count,
                        has_source ? source_index : kNoSource,
                        static_cast<uint32_t>(plan.bytes),
                        plan.is_loose == 0 && cta.work->width >= kPack,
                        (flags & kScalesInput) && instruction.source == Place::Input,
                        (flags & kScalesResult) && (instruction.flags & kFinish)};
  if constexpr (Operation::kReduces) {
    if (move.operand_count > 1 || move.scales_result) {
      simple_chunk<Operation, Operation::kUnroll, true>(cta, lane, move);
    } else {
      simple_chunk<Operation, kCopyUnroll, false>(cta, lane, move);
    }
  } else {
    simple_chunk<Operation, kCopyUnroll, false>(cta, lane, move);
  }

  lane.barrier();
  for (uint32_t i = lane.rank; i < ports.count; i += lane.size) {
    const PortUse use = ports.use(i);
    PortState& port = cta.ports[use.port];
    const uint64_t step = step_of(port, use, round);
    if (ports.is_send(i)) {
      set_sent(cta, use, port, step, move.bytes);
    } else {
      set_done(port, step);
    }
  }
  return true;
}

}  // namespace niccolite::executor::cuda
