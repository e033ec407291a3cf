// One instruction by the Simple protocol: plain bytes in slots, counters for their arrival, which
// the service warp looks at and advances (service_warp.cuh).
//   wait   one thread per port waits for the service warp's word, and writes the slot's address to
//          shared memory;
//   fold   all threads of the lane, packs of 16 bytes, several in flight;
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
  bool may_be_lent;  // the other operands may be users' memory, in which nothing is read beyond
                     // the chunk
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

/// Pack `p` of an operand: slots are aligned, users' memory is as far as `kExact` says.
template <typename Operation, bool kExact>
__device__ __forceinline__ Pack load_operand(const Cta& cta, const SimpleMove& move, uint32_t k,
                                             uint32_t p) {
  const std::byte* address = move.operands[k] + static_cast<size_t>(p) * kPack;
  Pack pack;
  if (kExact || (k != move.source_index && !move.may_be_lent)) {
    pack = ptx::load_pack(address);
  } else {
    using Element = typename Operation::Element;
    const uint32_t left = move.bytes - p * kPack;
    const uint32_t low = left < 8 ? left : 8;
    const uint32_t high = left < 8 ? 0 : left < 16 ? left - 8 : 8;
    pack.half[0] = load_granule<Element>(address, low, cta.work->width);
    pack.half[1] = high == 0 ? 0 : load_granule<Element>(address + 8, high, cta.work->width);
  }
  if constexpr (Operation::kReduces) {
    if (move.scales_input && k == move.source_index) {
      pack.half[0] = scale_input<Operation>(cta, pack.half[0]);
      pack.half[1] = scale_input<Operation>(cta, pack.half[1]);
    }
  }
  return pack;
}

/// Stores the result of pack `p`. Slots have room for a whole pack.
template <typename Operation, bool kExact>
__device__ __forceinline__ void store_target(const Cta& cta, const SimpleMove& move, uint32_t p,
                                             const Pack& pack) {
  std::byte* address = move.target + static_cast<size_t>(p) * kPack;
  if (kExact) {
    ptx::store_pack(address, pack);
  } else {
    using Element = typename Operation::Element;
    const uint32_t left = move.bytes - p * kPack;
    const uint32_t low = left < 8 ? left : 8;
    const uint32_t high = left < 8 ? 0 : left < 16 ? left - 8 : 8;
    store_granule<Element>(address, pack.half[0], low, cta.work->width);
    if (high != 0) store_granule<Element>(address + 8, pack.half[1], high, cta.work->width);
  }
}

/// Stores pack `p` of what is sent. Not beyond the chunk's end: it may land where others' data
/// follow. Slots and landings are aligned.
template <typename Operation, bool kExact>
__device__ __forceinline__ void store_send(const SimpleMove& move, std::byte* chunk, uint32_t p,
                                           const Pack& pack) {
  std::byte* address = chunk + static_cast<size_t>(p) * kPack;
  if (kExact || move.bytes >= (p + 1) * kPack) return ptx::store_pack(address, pack);
  using Element = typename Operation::Element;
  const uint32_t bytes = move.bytes % kPack;
#pragma unroll 1
  for (uint32_t at = 0; at < bytes; at += sizeof(Element)) {
    const uint64_t half = at < 8 ? pack.half[0] : pack.half[1];
    using Piece = typename PieceOf<sizeof(Element)>::Type;
    ptx::store<Piece>(address + at, static_cast<Piece>(half >> (8 * (at % 8))));
  }
}

/// Packs p, p + stride, ... (kUnroll of them, those below `end` when kChecked): folded, stored.
template <typename Operation, int kUnroll, bool kExact, bool kChecked, bool kFolds>
__device__ __forceinline__ void simple_packs(const Cta& cta, const SimpleMove& move, uint32_t p,
                                             uint32_t stride, uint32_t end) {
  const auto takes_part = [&](int i) { return !kChecked || p + i * stride < end; };
  Pack result[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (takes_part(i)) {
      result[i] = load_operand<Operation, kExact>(cta, move, 0, p + i * stride);
    }
  }
  if constexpr (kFolds) {
    typename Operation::Values values[kUnroll][2];
    Pack next[kUnroll];
    const auto load_next = [&](uint32_t k) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (takes_part(i)) {
          next[i] = load_operand<Operation, kExact>(cta, move, k, p + i * stride);
        }
      }
    };
    if (move.operand_count > 1) load_next(1);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      values[i][0] = Operation::widen(result[i].half[0]);
      values[i][1] = Operation::widen(result[i].half[1]);
    }
#pragma unroll 1
    for (uint32_t k = 1; k < move.operand_count; ++k) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) result[i] = next[i];
      if (k + 1 < move.operand_count) load_next(k + 1);  // on its way while this one is folded
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        Operation::accumulate(values[i][0], Operation::widen(result[i].half[0]));
        Operation::accumulate(values[i][1], Operation::widen(result[i].half[1]));
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      result[i].half[0] = Operation::finish(cta.header, values[i][0], move.scales_result);
      result[i].half[1] = Operation::finish(cta.header, values[i][1], move.scales_result);
    }
  }
  // Not unrolled: the compiler's copies of the loop cost registers, and save nothing of the stores.
#pragma unroll 1
  for (uint32_t s = 0; s < move.send_count; ++s) {
    std::byte* slot = move.sends[s];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (takes_part(i)) {
        store_send<Operation, kExact>(move, slot, p + i * stride, result[i]);
      }
    }
  }
  if (move.target != nullptr) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (takes_part(i)) store_target<Operation, kExact>(cta, move, p + i * stride, result[i]);
    }
  }
}

/// The whole chunk. When all addresses are aligned, body and end are the same fold, the end checked
/// against the bound; a last pack that is not whole, and buffers that are not aligned, go by
/// pieces.
template <typename Operation, int kUnroll, bool kFolds>
__device__ __forceinline__ void simple_chunk(const Cta& cta, const LaneThreads& lane,
                                             const SimpleMove& move) {
  const uint32_t packs = (move.bytes + kPack - 1) / kPack;
  const uint32_t exact = cta.work->width >= kPack ? move.bytes / kPack : 0;
  uint32_t p = lane.rank;
  for (; p + (kUnroll - 1) * lane.size < exact; p += kUnroll * lane.size) {
    simple_packs<Operation, kUnroll, true, false, kFolds>(cta, move, p, lane.size, exact);
  }
  if (p < exact) {
    simple_packs<Operation, kUnroll, true, true, kFolds>(cta, move, p, lane.size, exact);
  }
  p = exact + lane.rank;
  // Whole packs of buffers that are not aligned, several in flight where there are registers.
  if constexpr (!Operation::kReduces) {
    constexpr int kLoose = 4;
    for (; p + (kLoose - 1) * lane.size < move.bytes / kPack; p += kLoose * lane.size) {
      simple_packs<Operation, kLoose, false, false, kFolds>(cta, move, p, lane.size, packs);
    }
  }
  for (; p < packs; p += lane.size) {
    simple_packs<Operation, 1, false, false, kFolds>(cta, move, p, lane.size, packs);
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
    if (ports.is_send(i)) {
      sends[i - ports.receive_count] = chunk_at<Operation>(cta, port, use, round);
    } else {
      operands[i + (has_source && i >= instruction.source_position)] =
          chunk_at<Operation>(cta, port, use, round);
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
                        (instruction.flags & kMayBeLent) != 0,
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
    set_done(port, step_of(port, use, round));
  }
  return true;
}

}  // namespace niccolite::executor::cuda
