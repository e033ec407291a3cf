// One instruction by the Simple protocol: plain bytes in slots, counters for their arrival, which
// the service warp looks at and advances (service_warp.cuh).
//   wait   one thread per port waits for the service warp's word, and writes the slot's address to
//          shared memory;
//   fold   all threads of the lane, packs of 16 bytes (or what is aligned), several in flight;
//   done   one thread per port tells the service warp.
// A lane barrier stands between them. The barriers also carry the order of the PTX memory model:
// [seen] -> barrier -> loads of all threads, and loads and stores of all threads -> barrier ->
// [done].
#pragma once

#include "executor/cuda/cta.cuh"
#include "executor/cuda/service_warp.cuh"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kPack = 16;
inline constexpr int kCopyUnroll = 8;

/// What the fold of one instruction works on. Operands stand in fold order.
struct SimpleMove {
  std::byte* const* operands;  // addresses
  std::byte* const* sends;
  std::byte* target;  // or null
  uint32_t operand_count;
  uint32_t send_count;
  uint32_t source_index;  // of the local operand, or kNoSource
  uint32_t bytes;
  uint32_t width;  // bytes that all addresses are aligned to
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

/// What a thread moves at once: a pack, or, where addresses are not aligned to packs, a piece of
/// them. Neighbours in a warp move neighbours in memory.
template <typename Piece>
struct PieceAccess {
  static constexpr int kGranules = 1;
  /// Calls function(load), or function(store), for pieces that lie whole numbers of granules from
  /// `address`.
  template <typename Function>
  __device__ __forceinline__ static void with_load(const std::byte*, Function&& function) {
    function([](const std::byte* address) { return load(address); });
  }
  template <typename Function>
  __device__ __forceinline__ static void with_store(const std::byte*, Function&& function) {
    function([](std::byte* address, Piece piece) { store(address, piece); });
  }
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
/// A granule that lies anywhere.
template <typename Element>
struct AnyGranule {
  uint64_t bits;
};
template <typename Element>
struct PieceAccess<AnyGranule<Element>> {
  using Piece = AnyGranule<Element>;
  static constexpr int kGranules = 1;
  // Asked once for all pieces: each of them would take a branch.
  __device__ __forceinline__ static bool is_aligned(const std::byte* address) {
    return bytes_into_line(address) % kGranule == 0;
  }
  template <typename Function>
  __device__ __forceinline__ static void with_load(const std::byte* first, Function&& function) {
    if (is_aligned(first)) {
      function([](const std::byte* address) { return Piece{ptx::load<uint64_t>(address)}; });
    } else {
      function([](const std::byte* address) { return Piece{load_around(address)}; });
    }
  }
  template <typename Function>
  __device__ __forceinline__ static void with_store(const std::byte* first, Function&& function) {
    if (is_aligned(first)) {
      function([](std::byte* address, Piece piece) { ptx::store<uint64_t>(address, piece.bits); });
    } else {
      function([](std::byte* address, Piece piece) { store_around<Element>(address, piece.bits); });
    }
  }
  __device__ __forceinline__ static uint64_t granule(Piece piece, int) { return piece.bits; }
  __device__ __forceinline__ static void set_granule(Piece& piece, int, uint64_t granule) {
    piece.bits = granule;
  }
};
template <>
struct PieceAccess<Pack> {
  static constexpr int kGranules = 2;
  template <typename Function>
  __device__ __forceinline__ static void with_load(const std::byte*, Function&& function) {
    function([](const std::byte* address) { return load(address); });
  }
  template <typename Function>
  __device__ __forceinline__ static void with_store(const std::byte*, Function&& function) {
    function([](std::byte* address, const Pack& pack) { store(address, pack); });
  }
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

/// Operand k at the places at(i) of the chunk, those that take part.
template <typename Operation, typename Piece, int kUnroll, typename TakesPart, typename At>
__device__ __forceinline__ void load_operand(const Cta& cta, const SimpleMove& move, uint32_t k,
                                             Piece (&pieces)[kUnroll], TakesPart&& takes_part,
                                             At&& at) {
  using Access = PieceAccess<Piece>;
  const std::byte* operand = move.operands[k];
  Access::with_load(operand + at(0), [&](auto load) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (takes_part(i)) pieces[i] = load(operand + at(i));
    }
  });
  if constexpr (Operation::kReduces) {
    if (!move.scales_input || k != move.source_index) return;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
      for (int g = 0; g < Access::kGranules; ++g) {
        Access::set_granule(pieces[i], g,
                            scale_input<Operation>(cta, Access::granule(pieces[i], g)));
      }
    }
  }
}

/// Pieces p, p + stride, ... (kUnroll of them, those below `end` when kChecked), counted from byte
/// `from` of the chunk: folded, stored.
template <typename Operation, typename Piece, int kUnroll, bool kChecked, bool kFolds>
__device__ __forceinline__ void simple_pieces(const Cta& cta, const SimpleMove& move, uint32_t from,
                                              uint32_t p, uint32_t stride, uint32_t end) {
  using Access = PieceAccess<Piece>;
  constexpr int kGranules = Access::kGranules;
  const auto takes_part = [&](int i) { return !kChecked || p + i * stride < end; };
  // (Of 64 bits, so that where the stride is a constant so are the distances.)
  const size_t first = from + size_t{p} * sizeof(Piece);
  const auto at = [&](int i) { return first + size_t(i) * stride * sizeof(Piece); };
  // Set, as everywhere that registers are loaded on a condition: what the condition might leave as
  // it was would take its registers in all of the loop around, and before it.
  Piece result[kUnroll] = {};
  load_operand<Operation>(cta, move, 0, result, takes_part, at);
  if constexpr (kFolds) {
    typename Operation::Values values[kUnroll][kGranules];
    Piece next[kUnroll] = {};
    const auto load_next = [&](uint32_t k) {
      load_operand<Operation>(cta, move, k, next, takes_part, at);
    };
    if (move.operand_count > 1) load_next(1);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        values[i][g] = Operation::widen(Access::granule(result[i], g));
      }
    }
#pragma unroll 1
    for (uint32_t k = 1; k < move.operand_count; ++k) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) result[i] = next[i];
      if (k + 1 < move.operand_count) load_next(k + 1);  // on its way while this one is folded
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
          Operation::accumulate(values[i][g], Operation::widen(Access::granule(result[i], g)));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        Access::set_granule(result[i], g,
                            Operation::finish(cta.header, values[i][g], move.scales_result));
      }
    }
  }
  const auto store = [&](std::byte* chunk) {
    Access::with_store(chunk + at(0), [&](auto put) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (takes_part(i)) put(chunk + at(i), result[i]);
      }
    });
  };
  // Not unrolled: the compiler's copies of the loop cost registers, and save nothing of the stores.
#pragma unroll 1
  for (uint32_t s = 0; s < move.send_count; ++s) store(move.sends[s]);
  if (move.target != nullptr) store(move.target);
}

/// Bytes of the chunk before the first address of its first destination that is a multiple of `to`.
__device__ __forceinline__ uint32_t bytes_before(const SimpleMove& move, uint32_t to) {
  const std::byte* first = move.send_count != 0 ? move.sends[0] : move.target;
  return (to - bytes_into_line(first) % to) % to;
}

/// From piece `first` on, as many times kUnroll pieces of every thread as there are, then half as
/// many: returns the first piece that is left. A warp's lie side by side, so that all their places
/// are known but for one.
template <typename Operation, typename Piece, int kUnroll, bool kFolds>
__device__ __forceinline__ uint32_t simple_tiles(const Cta& cta, const LaneThreads& lane,
                                                 const SimpleMove& move, uint32_t from,
                                                 uint32_t first, uint32_t end) {
  const uint32_t tile = kUnroll * lane.size;
  const uint32_t in_tile = lane.rank / kWarp * kWarp * kUnroll + lane.rank % kWarp;
  for (; first + tile <= end; first += tile) {
    simple_pieces<Operation, Piece, kUnroll, false, kFolds>(cta, move, from, first + in_tile, kWarp,
                                                            end);
  }
  if constexpr (kUnroll > kCopyUnroll) {
    return simple_tiles<Operation, Piece, kUnroll / 2, kFolds>(cta, lane, move, from, first, end);
  }
  return first;
}

/// The pieces that lie whole between bytes `from` and `to` of the chunk: returns where they end.
/// Without arithmetic to do, a warp stores whole lines of 128 bytes: one whose stores lie across
/// them sends twice as many packets over a link.
template <typename Operation, typename Piece, int kUnroll, bool kFolds>
__device__ __forceinline__ uint32_t simple_range(const Cta& cta, const LaneThreads& lane,
                                                 const SimpleMove& move, uint32_t from,
                                                 uint32_t to) {
  constexpr uint32_t kBytes = sizeof(Piece);
  constexpr int kRest = kUnroll < kCopyUnroll ? kUnroll : kCopyUnroll;
  const uint32_t end = (to - from) / kBytes;
  uint32_t first = 0;
  if constexpr (!Operation::kReduces) {
    const uint32_t before_line = bytes_before(move, kLine);
    const uint32_t head = before_line > from ? (before_line - from) / kBytes : 0;
    const uint32_t most = head < end ? head : end;
    for (uint32_t h = lane.rank; h < most; h += lane.size) {
      simple_pieces<Operation, Piece, 1, true, kFolds>(cta, move, from, h, lane.size, most);
    }
    first += head;
  }
  first = simple_tiles<Operation, Piece, kUnroll, kFolds>(cta, lane, move, from, first, end);
  if (first + lane.rank < end) {
    simple_pieces<Operation, Piece, kRest, true, kFolds>(cta, move, from, first + lane.rank,
                                                         lane.size, end);
  }
  return from + end * kBytes;
}

/// The elements between the two, one at a time.
template <typename Operation, bool kFolds>
__device__ __forceinline__ void simple_elements(const Cta& cta, const LaneThreads& lane,
                                                const SimpleMove& move, uint32_t from,
                                                uint32_t to) {
  using Piece = typename PieceOf<sizeof(typename Operation::Element)>::Type;
  const uint32_t end = (to - from) / sizeof(Piece);
  for (uint32_t p = lane.rank; p < end; p += lane.size) {
    simple_pieces<Operation, Piece, 1, true, kFolds>(cta, move, from, p, lane.size, end);
  }
}

/// The whole chunk, by granules that are aligned at the first destination; what lies before and
/// behind them, element by element. As few loads for an operand as can be, and one store for that
/// destination. (Stores to others, in pieces, lie apart in memory, and cost several times as much.)
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ void simple_granules(const Cta& cta, const LaneThreads& lane,
                                                const SimpleMove& move) {
  using Piece = AnyGranule<typename Operation::Element>;
  const uint32_t before = bytes_before(move, kGranule);
  const uint32_t first = before < move.bytes ? before : move.bytes;
  simple_elements<Operation, kFolds>(cta, lane, move, 0, first);
  const uint32_t done =
      simple_range<Operation, Piece, kUnroll, kFolds>(cta, lane, move, first, move.bytes);
  simple_elements<Operation, kFolds>(cta, lane, move, done, move.bytes);
}

/// The whole chunk: packs, or, where addresses are not aligned to them, what can be had.
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ void simple_chunk(const Cta& cta, const LaneThreads& lane,
                                             const SimpleMove& move) {
  if (move.width >= kPack) {
    const uint32_t done =
        simple_range<Operation, Pack, kUnroll, kFolds>(cta, lane, move, 0, move.bytes);
    simple_elements<Operation, kFolds>(cta, lane, move, done, move.bytes);
  } else if constexpr (Operation::kReduces) {
    simple_granules<Operation, kUnroll, kFolds>(cta, lane, move);
  } else {
    // Pieces that all addresses are aligned to: to put granules together was slower. In flight are
    // as many bytes, or as many as there are registers for.
    uint32_t done = 0;
    if (move.width == 8) {
      done = simple_range<Operation, uint64_t, 2 * kUnroll, kFolds>(cta, lane, move, 0, move.bytes);
    } else if (move.width == 4) {
      done = simple_range<Operation, uint32_t, 4 * kUnroll, kFolds>(cta, lane, move, 0, move.bytes);
    } else if (move.width == 2) {
      done = simple_range<Operation, uint16_t, 4 * kUnroll, kFolds>(cta, lane, move, 0, move.bytes);
    }
    simple_range<Operation, uint8_t, kUnroll, kFolds>(cta, lane, move, done, move.bytes);
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
  uint64_t is_loose;  // 1: something that a peer has offered is less aligned than the own buffers
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
    if (reinterpret_cast<uintptr_t>(chunk) % cta.work->width != 0) plan.is_loose = 1;
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
  const SimpleMove move{
      operands,
      sends,
      plan.target,
      uint32_t{instruction.receive_count} + has_source,
      instruction.send_count,
      has_source ? source_index : kNoSource,
      static_cast<uint32_t>(plan.bytes),
      plan.is_loose != 0 ? Operation::element_bytes(cta.header) : uint32_t{cta.work->width},
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
