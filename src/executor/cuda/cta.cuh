// What the interpreters of all protocols share: the start of a CTA, and where an instruction's data
// lies.
#pragma once

#include "executor/cuda/launch_args.h"
#include "executor/cuda/ptx.cuh"
#include "executor/cuda/reduce.cuh"
#include "executor/cuda/user_memory.cuh"
#include "executor/cuda/wait.cuh"
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

  /// Of the work's partition. Worked out anew each time: a register less.
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

/// Where `chunk` of block `block` of a local buffer lies. The chunk is not empty.
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

/// What an instruction does with local data in a round.
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

// ---- start

/// Where the works lie in the parameters.
__device__ __forceinline__ const WorkTask* work_tasks(const LaunchArgs& args) {
  return reinterpret_cast<const WorkTask*>(args.tables);
}

/// Takes up a port where the last operation left it, or, of works that take turns, the works before
/// its own will.
template <bool kMayTakeTurns>
__device__ __forceinline__ void start_port(const LaunchHeader& header, const PortTask& task,
                                           const WorkTask& work, PortState& state) {
  const uint32_t channel = channel_of(work);
  if (channel >= work.partition.channels) {
    state.control = nullptr;
    return;
  }
  ControlBlock* control = task.control + channel;
  const bool is_send = (task.end & PortTask::kSendEnd) != 0;
  // Written by this rank's last kernel; ordered by the stream.
  const uint64_t first = ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(&control->step));
  const uint64_t base = kMayTakeTurns ? first + work.first_step : first;
  // A sender: [credit], pairs with the [consume] and [resume] of the receiver. A receiver:
  // [arrival], pairs with [publish].
  const uint64_t remote = ptx::load_acquire_system(&control->remote);
  // An advertisement that is found behind an aborted operation may be meant for that one.
  const bool is_closed = base >= kAbortedStep;
  const bool is_direct_get = (task.end & PortTask::kDirectGet) != 0;
  const bool has_advertisement =
      (task.end & (PortTask::kDirectPut | PortTask::kDirectGet)) != 0 && !is_closed;
  // Who takes is closed until the advertisement comes.
  const bool takes_advertisement = has_advertisement && is_send != is_direct_get;
  state.slots = task.slots + header.shape.slot_offset(channel, 0);
  state.base = base;
  state.end = base + static_cast<uint64_t>(work.partition.rounds) * task.steps;
  state.completed = base;
  state.published = base;
  state.control = control;
  state.advertisement =
      static_cast<uint64_t>(has_advertisement ? Advertisement::Pending : Advertisement::None);
  state.detached = 0;
  state.remote_control = task.remote_control + channel;
  state.peer = task.end & PortTask::kPeerMask;
  state.other_tag = Awaited::kNoTag;
  state.steps = task.steps;
  state.tag = work.tag;
  state.is_send = is_send;
  state.stays = (task.end & PortTask::kStays) != 0;
  state.is_direct_get = is_direct_get;
  state.opens = (task.end & PortTask::kOpens) != 0;
  state.own_slots = state.slots;
  state.pulls = static_cast<uint32_t>(Pulls::None);
  state.delivered = 0;
  state.published_delivered = 0;
  state.is_followed = (task.end & PortTask::kFollowed) != 0;
  state.is_relay = (task.end & PortTask::kRelay) != 0;
  if (is_send) {
    state.cached = takes_advertisement ? base - header.shape.depth : remote;
  } else {
    state.cached = takes_advertisement || is_of_other_call(state, remote)
                       ? base
                       : call_tag::steps_in(remote, base);
  }
  // Nobody reads the step before the next kernel, so that it may be advanced at once rather than at
  // the end, where it would be waited for. (An aborted operation leaves it wrong: its communicator
  // moves no more data.)
  // Of works that take turns others are still to read it: finish_turns().
  if (!kMayTakeTurns || (header.flags & kTakesTurns) == 0) {
    ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&control->step), state.end);
  }
  if (!is_send && !is_closed) {
    // [resume] the slots that earlier operations read, whose credit they did not give back.
    // Relaxed: those reads were over when their kernel ended.
    ptx::store_relaxed_system(&state.remote_control->remote, first);
  }
}

/// After a barrier behind all start_port(): the works that take turns on a connection are in one
/// CTA, and the last of them advances its step for all.
__device__ __forceinline__ void finish_turns(const LaunchHeader& header, const PortState* ports) {
  for (uint32_t p = ptx::thread(); p < header.nports; p += ptx::threads()) {
    if (ports[p].control == nullptr || ports[p].is_followed != 0) continue;
    ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&ports[p].control->step), ports[p].end);
  }
}

/// All threads of the CTA. Ends with a barrier. The view is still that of no worker.
template <typename Operation>
__device__ __forceinline__ Cta start_cta(const LaunchArgs& args) {
  const LaunchHeader& header = args.header;
  const WorkTask* works = work_tasks(args);
  std::byte* shared = ptx::shared_memory();
  const std::byte* params =
      header.params == nullptr ? args.tables + header.params_at : header.params;
  const uint32_t units = (header.params_bytes - header.staged_at) / sizeof(uint4);
  const auto* source = reinterpret_cast<const uint4*>(params + header.staged_at);
  auto* staged = reinterpret_cast<uint4*>(shared);
  auto* ports = reinterpret_cast<PortState*>(shared + header.ports_at);

  // Two chains of loads that should overlap: the tables, and port -> control block. The last
  // threads copy the tables, the first ones take the ports.
  const uint32_t reversed = ptx::threads() - 1 - ptx::thread();
  uint4 first{};
  if (reversed < units) first = source[reversed];
  for (uint32_t p = ptx::thread(); p < header.nports; p += ptx::threads()) {
    // Two wide loads: read field by field, the address of the control block comes one latency late.
    const uint4 parts[2] = {reinterpret_cast<const uint4*>(params)[2 * p],
                            reinterpret_cast<const uint4*>(params)[2 * p + 1]};
    const auto task = bits_as<PortTask>(parts);
    if (task.channel != ptx::pattern_channel()) {
      ports[p].control = nullptr;
      continue;
    }
    // Of the only work nothing has to be looked up before the control block.
    if (header.nworks == 1) {
      start_port</*kMayTakeTurns=*/false>(header, task, works[0], ports[p]);
    } else {
      start_port<!Operation::kReduces>(header, task, works[task.work], ports[p]);
    }
  }
  if (reversed < units) staged[reversed] = first;
  for (uint32_t unit = reversed + ptx::threads(); unit < units; unit += ptx::threads()) {
    staged[unit] = source[unit];
  }
  if constexpr (Operation::kReduces) {
    if (header.device_scale != nullptr && reversed == 0) {
      *reinterpret_cast<uint64_t*>(shared + header.scale_at) =
          load_element<typename Operation::Element>(header.device_scale);
    }
  }
  ptx::barrier_cta();
  if constexpr (!Operation::kReduces) {
    if ((header.flags & kTakesTurns) != 0) finish_turns(header, ports);
  }
  return {header,
          works,
          reinterpret_cast<const CompactInstruction*>(shared + header.instructions_at),
          reinterpret_cast<const PortUse*>(shared + header.uses_at),
          ports,
          reinterpret_cast<std::byte**>(shared + header.pointers_at)};
}

/// What the calling thread's warp is: a worker, kServiceWorker or kNoWorker.
__device__ __forceinline__ uint8_t role_of_warp(const LaunchHeader& header) {
  const auto* warps = reinterpret_cast<const uint8_t*>(ptx::shared_memory() + header.warps_at);
  return warps[ptx::pattern_channel() * kMaxWarps + ptx::thread() / kWarp];
}

/// The worker of the calling thread's warp, which has one.
__device__ __forceinline__ const WorkerTask& worker_of_warp(const LaunchHeader& header) {
  const auto* workers =
      reinterpret_cast<const WorkerTask*>(ptx::shared_memory() + header.workers_at);
  return workers[role_of_warp(header)];
}

/// The worker of the calling thread, whose work becomes that of the view; null: none, here.
__device__ __forceinline__ const WorkerTask* enter_worker(const LaunchArgs& args, Cta& cta) {
  if (role_of_warp(args.header) == kNoWorker) return nullptr;
  const WorkerTask* task = &worker_of_warp(args.header);
  cta.work = work_tasks(args) + task->work;
  return cta.channel() < cta.work->partition.channels ? task : nullptr;
}

}  // namespace niccolite::executor::cuda
