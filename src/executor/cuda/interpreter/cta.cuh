// The common part of the interpreters of all protocols: a worker's view of the launch, and the
// places of an instruction's data. cta_start.cuh prepares this view for a CTA.
#pragma once

#include "executor/cuda/interpreter/reduce.cuh"
#include "executor/cuda/interpreter/user_memory.cuh"
#include "executor/cuda/interpreter/wait.cuh"
#include "executor/cuda/launch/launch_args.h"
#include "executor/cuda/ptx/ptx.cuh"
#include "executor/protocol/call_tag.h"

namespace niccolite::executor::cuda {

/// The channel of the work's partition that the CTA handles; none when it has no such channel.
__device__ __forceinline__ uint32_t channel_of(const WorkTask& work) {
  return ptx::replica() * work.pattern_channels + ptx::pattern_channel() -
         work.first_pattern_channel;
}

/// A worker's view of the launch: its work, and the tables in shared memory.
struct Cta {
  const LaunchHeader& header;
  const WorkTask* work;
  const CompactInstruction* instructions;
  const PortUse* uses;
  PortState* ports;
  std::byte** pointers;

  /// Returns the channel of the work's partition. Computed anew each time: a register less.
  __device__ __forceinline__ uint32_t channel() const { return channel_of(*work); }
};

/// The threads of the CTA that run one worker. Named in every cooperative call.
struct WorkerThreads {
  uint32_t rank;  // of the calling thread
  uint32_t size;
  uint32_t barrier_id;

  /// All threads of the worker must arrive.
  __device__ __forceinline__ void barrier() const {
    if (size == kWarp) {
      ptx::barrier_warp();
    } else {
      ptx::barrier(barrier_id, size);
    }
  }
};

/// The first vec8 of the input that the thread will need, on its way while the CTA starts. The
/// input keeps its value until it has been read (schedule/check.h), also in place.
struct Prefetched {
  const std::byte* address;
  uint64_t vec8;
};

// ---- instructions

/// The bytes that an instruction moves in a round.
struct Chunk {
  uint64_t in_block;  // bytes from the start of a block
  uint32_t bytes;     // 0: empty
};

template <typename Operation>
__device__ __forceinline__ Chunk chunk_of(const Cta& cta, const CompactInstruction& instruction,
                                          uint32_t round) {
  const Partition& partition = cta.work->partition;
  const uint32_t element_bytes = Operation::element_bytes(cta.header);
  const Range range = partition.range(instruction.chunk_block, cta.channel(), round);
  const uint64_t block_start = instruction.chunk_block * partition.block_stride;
  return {(range.offset - block_start) * element_bytes,
          static_cast<uint32_t>(range.count) * element_bytes};
}

/// Returns the address of `chunk` of block `block` of a local buffer. The chunk is not empty.
template <typename Operation>
__device__ __forceinline__ std::byte* address_of(const Cta& cta, OperandBuffer place,
                                                 uint32_t block, const Chunk& chunk) {
  const WorkTask& work = *cta.work;
  std::byte* buffer = place == OperandBuffer::Input    ? const_cast<std::byte*>(work.input)
                      : place == OperandBuffer::Output ? work.output
                                                       : work.scratch;
  return buffer + block * work.partition.block_stride * Operation::element_bytes(cta.header) +
         chunk.in_block;
}

/// The local data that an instruction moves in a round.
struct Transfer {
  uint32_t bytes;           // 0: nothing is moved, be the chunk empty or the copy onto itself
  const std::byte* source;  // null: none
  std::byte* target;        // null: none, or the result is there already
  bool scales_input;
  bool scales_result;
};

template <typename Operation>
__device__ __forceinline__ Transfer transfer_of(const Cta& cta,
                                                const CompactInstruction& instruction,
                                                uint32_t round) {
  const uint32_t flags = Operation::kReduces ? cta.header.flags : 0;
  const Chunk chunk = chunk_of<Operation>(cta, instruction, round);
  Transfer transfer{chunk.bytes, nullptr, nullptr,
                    (flags & kScalesInput) && instruction.source == OperandBuffer::Input,
                    (flags & kScalesResult) && (instruction.flags & kFinish)};
  if (chunk.bytes == 0) return transfer;
  if (instruction.source != OperandBuffer::None) {
    transfer.source =
        address_of<Operation>(cta, instruction.source, instruction.source_block, chunk);
  }
  if (instruction.target != OperandBuffer::None) {
    transfer.target =
        address_of<Operation>(cta, instruction.target, instruction.target_block, chunk);
  }
  if (transfer.source == transfer.target && instruction.receive_count == 0 &&
      !transfer.scales_input && !transfer.scales_result) {
    transfer.target = nullptr;
    if (instruction.send_count == 0) transfer.bytes = 0;
  }
  return transfer;
}

/// The step of one use of a port.
__device__ __forceinline__ uint64_t step_of(const PortState& port, const PortUse& use,
                                            uint32_t round) {
  return port.base + static_cast<uint64_t>(round) * port.steps + use.use;
}

/// Receiver: can the sender need the credit of `step` in this operation (fifo.h: lazy credit)?
/// Never, unless the instruction is marked kGivesCredit.
__device__ __forceinline__ bool needs_credit(const Cta& cta, const PortState& port, uint64_t step) {
  return step + cta.header.shape.depth < port.end;
}

/// A vec8 of the input, scaled.
template <typename Operation>
__device__ __forceinline__ uint64_t scale_input(const Cta& cta, uint64_t vec8) {
  if (cta.header.device_scale == nullptr) {
    return Operation::scale_input(Operation::input_scale(cta.header), vec8);
  }
  const auto scale = *reinterpret_cast<const uint64_t*>(ptx::shared_memory() + cta.header.scale_at);
  return Operation::scale_input(Operation::input_scale(scale), vec8);
}

/// Receiver, Simple: does the tail announce slots of this operation that belong to another call
/// (call_tag.h)?
__device__ __forceinline__ bool is_of_other_call(const PortState& port, uint64_t tail) {
  const uint64_t steps = call_tag::steps_in(tail, port.base);
  return steps > port.base && steps <= port.end && call_tag::tag_in(tail) != port.tag;
}

// ---- workers

/// Returns the works in the parameters.
__device__ __forceinline__ const WorkTask* work_tasks(const LaunchArgs& args) {
  return reinterpret_cast<const WorkTask*>(args.tables);
}

/// Returns the role of the calling thread's warp: a worker, kServiceWorker or kNoWorker.
__device__ __forceinline__ uint8_t role_of_warp(const LaunchHeader& header) {
  const auto* warps = reinterpret_cast<const uint8_t*>(ptx::shared_memory() + header.warps_at);
  return warps[ptx::pattern_channel() * kMaxWarps + ptx::thread() / kWarp];
}

__device__ __forceinline__ const WorkerTask& worker_at(const LaunchHeader& header,
                                                       uint32_t number) {
  return reinterpret_cast<const WorkerTask*>(ptx::shared_memory() + header.workers_at)[number];
}

/// The worker of the calling thread's warp, which has one.
__device__ __forceinline__ const WorkerTask& worker_of_warp(const LaunchHeader& header) {
  return worker_at(header, role_of_warp(header));
}

/// Returns the worker of the calling thread, and makes its work the work of the view. Null: the
/// thread has none here.
__device__ __forceinline__ const WorkerTask* enter_worker(const LaunchArgs& args, Cta& cta) {
  if (role_of_warp(args.header) == kNoWorker) return nullptr;
  const WorkerTask* task = &worker_of_warp(args.header);
  cta.work = work_tasks(args) + task->work;
  return cta.channel() < cta.work->partition.channels ? task : nullptr;
}

}  // namespace niccolite::executor::cuda
