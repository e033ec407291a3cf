// One instruction by the Simple protocol: plain bytes in slots, counters for their arrival, which
// the service warp looks at and advances (service_warp.cuh).
//   wait     one thread per port waits for the service warp's word, and writes the slot's address
//            to shared memory;
//   reduce   all threads of the worker (simple_chunk.cuh);
//   done     one thread per port tells the service warp.
// A worker barrier stands between them. The barriers also carry the order of the PTX memory model:
// [cached] -> barrier -> loads of all threads, and loads and stores of all threads -> barrier ->
// [completed].
#pragma once

#include "executor/cuda/interpreter/places.cuh"
#include "executor/cuda/interpreter/service_warp.cuh"
#include "executor/cuda/interpreter/simple_chunk.cuh"

namespace niccolite::executor::cuda {

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

/// The values that a worker's threads share for one instruction. Some threads write them between
/// two barriers, at WorkerTask::pointers: first this struct, then the operands in reduction order,
/// then the slots to send.
struct SimplePlan {
  const std::byte* live;  // null once aborted
  std::byte* target;      // or null
  uint64_t left;          // bytes from the chunk to the end of the block, of a worker with only one
                          // instruction
  uint64_t bytes;         // of the chunk
  uint64_t is_loose;      // 1: something that a peer has advertised is not aligned to vec16s
};
static_assert(sizeof(SimplePlan) == kPlanPointers * sizeof(std::byte*));

__device__ __forceinline__ SimplePlan& plan_at(std::byte** pointers) {
  return *reinterpret_cast<SimplePlan*>(pointers);
}

/// Called by one thread, before the first instruction.
__device__ __forceinline__ void begin_plan(std::byte** pointers) {
  SimplePlan& plan = plan_at(pointers);
  plan.live = ptx::shared_memory();  // any address but null
  plan.bytes = 0;
  plan.is_loose = 0;
}

/// Sets, by one thread, the plan's local addresses and length. They move on from round to round
/// when the worker has no other instruction; to work them out anew takes half a microsecond, in
/// which nothing is moved.
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
    if (instruction.source != OperandBuffer::None) source += chunk;
    return;
  }
  const Transfer transfer = transfer_of<Operation>(cta, instruction, round);
  plan.target = transfer.target;
  plan.bytes = transfer.bytes;
  plan.left =
      transfer.bytes == 0
          ? 0
          : cta.work->partition.count_from(instruction.chunk_block, cta.channel()) * element_bytes;
  if (instruction.source != OperandBuffer::None) source = const_cast<std::byte*>(transfer.source);
}

/// Tells the service warp, when all threads have moved their part, that the instruction's slots are
/// stored, `bytes` in each, or read. By all threads of the worker.
template <typename Operation>
__device__ __forceinline__ void finish_step(const Cta& cta, const WorkerThreads& worker,
                                            const CompactInstruction& instruction,
                                            const PortsOfInstruction& ports, uint32_t round,
                                            uint32_t bytes) {
  worker.barrier();
  for (uint32_t i = worker.rank; i < ports.count; i += worker.size) {
    const PortUse use = ports.use(i);
    PortState& port = cta.ports[use.port];
    const uint64_t step = step_of(port, use, round);
    if constexpr (Operation::kHasPlaces) {
      const ChunkInPlace<Operation> chunk(cta, instruction, round);
      if (!ports.is_send(i)) {
        chunk.take_back_place(use);
      } else if (chunk.is_sent_from_place(use)) {
        chunk.set_sent_from_place(use);
        continue;
      }
    }
    if (ports.is_send(i)) {
      set_sent(cta, use, port, step, bytes);
    } else {
      set_done(port, step);
    }
  }
}

/// Runs one instruction, by all threads of the worker. `is_only`: it has no other instruction.
/// False: aborted, in all threads alike.
template <typename Operation>
__device__ __forceinline__ bool simple_step(const Cta& cta, const WorkerThreads& worker,
                                            const CompactInstruction& instruction, uint32_t round,
                                            bool is_only, std::byte** pointers) {
  const PortsOfInstruction ports(cta, instruction);
  const bool has_source = instruction.source != OperandBuffer::None;
  SimplePlan& plan = plan_at(pointers);
  std::byte** operands = pointers + kPlanPointers;
  std::byte** sends = operands + instruction.receive_count + has_source;
  const uint32_t source_index = instruction.source_position < instruction.receive_count
                                    ? instruction.source_position
                                    : instruction.receive_count;
  // The thread belongs to a warp that does not wait for ports, if there is one.
  if (worker.rank == (worker.size > kWarp ? kWarp : 0)) {
    plan_transfer<Operation>(cta, instruction, round, is_only, plan, operands[source_index]);
  }
  bool live = true;
  for (uint32_t i = worker.rank; i < ports.count; i += worker.size) {
    const PortUse use = ports.use(i);
    const PortState& port = cta.ports[use.port];
    const uint64_t step = step_of(port, use, round);
    live = live && wait_until_open(cta, port, step);
    std::byte* chunk = chunk_at<Operation>(cta, port, use, round);
    uint32_t send = i - ports.receive_count;
    if constexpr (Operation::kHasPlaces) {
      const ChunkInPlace<Operation> in_place(cta, instruction, round);
      if (!ports.is_send(i)) {
        if (in_place.has_landed(use)) chunk = in_place.target();
      } else if (in_place.is_sent_from_place(use)) {
        continue;
      } else {
        send = in_place.sends_by_slots(send);
      }
    }
    if (reinterpret_cast<uintptr_t>(chunk) % kVec16 != 0) plan.is_loose = 1;
    if (ports.is_send(i)) {
      sends[send] = chunk;
    } else {
      operands[i + (has_source && i >= instruction.source_position)] = chunk;
    }
  }
  if (!live) plan.live = nullptr;
  worker.barrier();
  // Written before this barrier of an earlier or of this instruction, never between two: the same
  // for all threads.
  if (plan.live == nullptr) return false;

  const auto bytes = static_cast<uint32_t>(plan.bytes);
  std::byte* target = plan.target;
  uint32_t send_count = instruction.send_count;
  bool moves_any = true;
  if constexpr (Operation::kHasPlaces) {
    send_count = ChunkInPlace<Operation>(cta, instruction, round).sends_by_slots(send_count);
    if (!has_source && operands[0] == target) target = nullptr;  // has landed
    moves_any = target != nullptr || send_count != 0;
  }
  const uint32_t flags = Operation::kReduces ? cta.header.flags : 0;
  const SimpleMove move{operands,
                        sends,
                        target,
                        uint32_t{instruction.receive_count} + has_source,
                        send_count,
                        has_source ? source_index : kNoSource,
                        moves_any ? bytes : 0,
                        plan.is_loose == 0 && cta.work->width >= kVec16,
                        (flags & kScalesInput) && instruction.source == OperandBuffer::Input,
                        (flags & kScalesResult) && (instruction.flags & kFinish)};
  if constexpr (Operation::kReduces) {
    if (move.operand_count > 1 || move.scales_result) {
      simple_chunk<Operation, Operation::kUnroll, true>(cta, worker, move);
    } else {
      simple_chunk<Operation, kCopyUnroll, false>(cta, worker, move);
    }
  } else {
    simple_chunk<Operation, kCopyUnroll, false>(cta, worker, move);
  }

  finish_step<Operation>(cta, worker, instruction, ports, round, bytes);
  return true;
}

}  // namespace niccolite::executor::cuda
