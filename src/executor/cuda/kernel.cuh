// The interpreter: runs a program's instructions (launch.h has their semantics), specialised by
// operation and protocol; everything that differs between algorithms is data.
//
// Launch shape: grid (replicas, pattern channels), up to kMaxThreads threads, of which every lane
// has some warps and, with Simple, the service warp is one; shared memory as
// LaunchHeader::shared_bytes says. Registers and spills are reported by the build (cmake/cuda.cmake
// fails on a spill). Small LL operations are limited by latency: parameters -> control block ->
// peer's memory -> own memory; Simple by the links.
#pragma once

#include "executor/cuda/bulk_lane.cuh"
#include "executor/cuda/ll128_step.cuh"
#include "executor/cuda/ll_step.cuh"

namespace niccolite::executor::cuda {

/// Starts the load of the input that the thread will need first; see Prefetched.
template <typename Operation>
__device__ __forceinline__ Prefetched prefetch_input(const LaunchArgs& args) {
  using Element = typename Operation::Element;
  Prefetched prefetched{nullptr, 0};
  const LaunchHeader& header = args.header;
  if (header.prefetch_block == kNoBlock) return prefetched;
  const WorkTask& work = *work_tasks(args);
  const uint32_t element_bytes = Operation::element_bytes(header);
  const Range range = work.partition.range(header.prefetch_block, ptx::replica(), 0);
  const uint32_t at = ptx::thread() * kGranule;
  const uint32_t chunk_bytes = static_cast<uint32_t>(range.count) * element_bytes;
  if (at < chunk_bytes) {
    const uint32_t left = chunk_bytes - at;
    prefetched.address = work.input + range.offset * element_bytes + at;
    prefetched.granule =
        load_granule<Element>(prefetched.address, left < kGranule ? left : kGranule, work.width);
  }
  return prefetched;
}

/// By one thread of a lane: a lane that has nothing to do but to receive offers its output. What is
/// passed on is only from there by bulk copies: threads read slots, which have whole packs.
template <typename Operation>
__device__ __forceinline__ void start_landing(const Cta& cta, const LaneTask& task) {
  const CompactInstruction& instruction = cta.instructions[task.first];
  if (task.count != 1 || instruction.receive_count != 1) return;
  const bool can_land = instruction.send_count == 0 || task.bulk != LaneTask::kNotBulk;
  std::byte* target = transfer_of<Operation>(cta, instruction, /*round=*/0).target;
  offer_landing(cta, cta.ports[cta.uses[instruction.receive].port], can_land ? target : nullptr);
}

/// A lane that does no more than receive, when its data land.
__device__ __forceinline__ bool only_awaits_landing(const Cta& cta, const LaneTask& task) {
  const CompactInstruction& instruction = cta.instructions[task.first];
  return task.count == 1 && instruction.receive_count == 1 && instruction.send_count == 0 &&
         has_agreed(cta.ports[cta.uses[instruction.receive].port]);
}

/// By one thread of it.
__device__ __forceinline__ void await_landing(const Cta& cta, const LaneTask& task) {
  const PortUse& use = cta.uses[cta.instructions[task.first].receive];
  PortState& port = cta.ports[use.port];
  const uint64_t last = step_of(port, use, cta.work->partition.rounds - 1);
  if (wait_until_open(cta, port, last)) set_done(port, last);
}

template <typename Operation, Protocol kProtocol>
__device__ __forceinline__ void run_kernel(const LaunchArgs& args) {
  Prefetched prefetched{nullptr, 0};
  if constexpr (kProtocol == Protocol::LL) prefetched = prefetch_input<Operation>(args);
  Cta cta = start_cta<Operation>(args);
  if constexpr (kProtocol == Protocol::Simple) {
    if (role_of_warp(args) == kServiceLane) return serve_ports(cta);
  }
  const LaneTask* task = enter_lane(args, cta);
  if (task == nullptr) return;
  const LaneThreads lane{ptx::thread() - task->first_thread, task->threads, task->barrier};
  const CompactInstruction* first = cta.instructions + task->first;
  const uint32_t count = task->count;
  const uint32_t rounds = cta.work->partition.rounds;

  if constexpr (kProtocol == Protocol::LL) {
    bool live = true;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < count; ++i) {
        ll_step<Operation>(cta, lane, first[i], round, prefetched, live);
      }
    }
  } else if constexpr (kProtocol == Protocol::LL128) {
    bool live = true;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < count; ++i) ll128_step<Operation>(cta, lane, first[i], round, live);
    }
  } else {
    std::byte** pointers = cta.pointers + task->pointers;
    if (lane.rank == 0) {
      start_landing<Operation>(cta, *task);
      plan_at(pointers).live = ptx::shared_memory();  // any address but null
    }
    lane.barrier();
    if (only_awaits_landing(cta, *task)) {
      if (lane.rank == 0) await_landing(cta, *task);
      return;
    }
    if (task->bulk != LaneTask::kNotBulk && cta.work->width >= kPack) {
      if (lane.rank == 0) BulkLane<Operation>(cta, *task, pointers).run();
      return;
    }
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < count; ++i) {
        if (simple_step<Operation>(cta, lane, first[i], round, count == 1, pointers)) continue;
        if (lane.rank == 0) leave_landings(cta, *task);
        return;
      }
    }
  }
}

}  // namespace niccolite::executor::cuda

/// Defines the kernel niccolite_<name>. One CTA on a multiprocessor is enough: without saying so,
/// the compiler may spill registers to make room for more.
#define NICCOLITE_KERNEL(name, Operation, kProtocol)                                            \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)       \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) {    \
    niccolite::executor::cuda::run_kernel<Operation, niccolite::executor::Protocol::kProtocol>( \
        args);                                                                                  \
  }
