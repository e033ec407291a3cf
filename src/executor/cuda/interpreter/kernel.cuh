// The interpreter: runs a program's instructions (launch.h has their semantics), specialised by
// operation and protocol; everything that differs between algorithms is data.
//
// Launch shape: grid (replicas, pattern channels), up to kMaxThreads threads. Every worker has some
// warps, and Simple adds the service warp. LaunchHeader::shared_bytes gives the shared memory. The
// build reports registers and fails on a spill (cmake/cuda.cmake). Latency limits small LL
// operations: parameters -> control block -> peer's memory -> own memory. The links limit Simple.
#pragma once

#include "executor/cuda/interpreter/cta_start.cuh"
#include "executor/cuda/interpreter/ll128_step.cuh"
#include "executor/cuda/interpreter/ll_step.cuh"
#include "executor/cuda/pipeline/copy_worker.cuh"
#include "executor/cuda/pipeline/pull_server.cuh"
#include "executor/cuda/pipeline/reduce_worker.cuh"
#include "executor/cuda/pipeline/stage_shift.cuh"

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
  const uint32_t at = ptx::thread() * kVec8;
  const uint32_t chunk_bytes = static_cast<uint32_t>(range.count) * element_bytes;
  if (at < chunk_bytes) {
    const uint32_t left = chunk_bytes - at;
    prefetched.address = work.input + range.offset * element_bytes + at;
    prefetched.vec8 =
        load_vec8<Element>(prefetched.address, left < kVec8 ? left : kVec8, work.width);
  }
  return prefetched;
}

/// Has the worker nothing to do but to wait for the peers that have its advertisements?
__device__ __forceinline__ bool only_awaits(const Cta& cta, const WorkerTask& task) {
  if (task.count != 1) return false;
  const CompactInstruction& instruction = cta.instructions[task.first];
  bool awaits = true;
  for_each_port_of(cta, instruction, [&](const PortState& port) {
    awaits = awaits && makes_advertisement(port) && has_agreed(port);
  });
  return awaits && instruction.receive_count + instruction.send_count != 0;
}

/// Waits by one thread of such a worker.
__device__ __forceinline__ void await_takers(const Cta& cta, const WorkerTask& task) {
  for_each_port_of(cta, cta.instructions[task.first], [&](PortState& port) {
    const uint64_t last = port.end - 1;
    // An exposing sender needs credit for all steps: as much as for a step that is a whole FIFO
    // further on.
    const uint64_t awaited = port.is_send ? last + cta.header.shape.depth : last;
    if (wait_until_open(cta, port, awaited)) set_done(port, last);
  });
}

/// Returns the handover of a worker that copies through stages. It lies behind the addresses that
/// its thread uses itself.
__device__ __forceinline__ Handover& handover_of(const CompactInstruction& instruction,
                                                 std::byte** pointers) {
  return *reinterpret_cast<Handover*>(pointers + kPlanPointers + instruction.receive_count +
                                      instruction.send_count);
}

/// Runs, by all threads, a worker that goes through its program by itself, from its begin on.
template <typename Operation>
__device__ __forceinline__ void run_by_threads(const Cta& cta, const WorkerTask& task,
                                               const WorkerThreads& worker, std::byte** pointers) {
  const CompactInstruction* first = cta.instructions + task.first;
  const uint32_t count = task.count;
  for (uint32_t round = 0; round < cta.work->partition.rounds; ++round) {
    for (uint32_t i = 0; i < count; ++i) {
      if (simple_step<Operation>(cta, worker, first[i], round, count == 1, pointers)) continue;
      if (worker.rank == 0) leave_advertisements(cta);
      return;
    }
  }
}

/// Called by the first thread of several warps.
template <typename Operation>
__device__ __forceinline__ void drive_copy(const Cta& cta, const WorkerTask& task,
                                           const WorkerThreads& worker, std::byte** pointers,
                                           Handover& handover) {
  const uint32_t position =
      CopyWorker<Operation, CopyCrew::Thread>(cta, task, pointers, &handover).run(0);
  if constexpr (!Operation::kReduces) {
    if (position != 0 && cta.instructions[task.first].receive_count == 0) {
      CopyWorker<Operation, CopyCrew::ThreadAndShifters> copy(cta, task, pointers, &handover);
      if (copy.run_shifted(shifting_warps(worker.size / kWarp - 1))) return;
    }
  }
  handover.leave(position);
}

/// Called by all threads of the other warps, which `worker` has, for the task that the first has
/// left to them.
template <typename Operation>
__device__ __forceinline__ void take_over_copy(const Cta& cta, const WorkerTask& task,
                                               const WorkerThreads& worker, std::byte** pointers,
                                               uint64_t left) {
  if (left == Handover::kNothing) return;
  if constexpr (!Operation::kReduces) {
    using Shifted = CopyWorker<Operation, CopyCrew::ThreadAndShifters>;
    if ((left & Shifted::kShifts) != 0) {
      const typename Shifted::Ring ring(cta.header.copy_stages, task.ring, /*operands=*/1);
      return shift_stages(ring, static_cast<uint32_t>(left), worker);
    }
    // Nothing has been stored, so that they may begin anew. (Data that was put is passed on only
    // from stages: AdvertisedBlock.)
    if (worker.size > kWarp && cta.instructions[task.first].receive_count == 0) {
      worker.barrier();  // the thread's addresses, where the plan is to be, are not wanted any more
      if (worker.rank == 0) begin_plan(pointers);
      worker.barrier();
      return run_by_threads<Operation>(cta, task, worker, pointers);
    }
  }
  if (worker.rank >= kWarp) return;
  CopyWorker<Operation, CopyCrew::Warp>(cta, task, pointers).run(static_cast<uint32_t>(left));
}

/// Runs, by all threads, a worker that copies through stages. With bulk copies, one of them does,
/// and other warps, if it has any, wait for the case that some buffer is not aligned: threads of
/// the first that wait for theirs would take a fifth of its time. Without, the first warp does; or,
/// of copies within the GPU that are not aligned, all threads, if they are many.
template <typename Operation>
__device__ __forceinline__ void run_copy(const Cta& cta, const WorkerTask& task,
                                         const WorkerThreads& worker, std::byte** pointers) {
  const CompactInstruction& instruction = cta.instructions[task.first];
  if (!ptx::has_bulk_copies()) {
    const bool copies_within = instruction.receive_count + instruction.send_count == 0;
    if (worker.size > 2 * kWarp && copies_within && cta.work->width < kVec16)
      return run_by_threads<Operation>(cta, task, worker, pointers);
    if (worker.rank < kWarp) CopyWorker<Operation, CopyCrew::Warp>(cta, task, pointers).run(0);
    return;
  }
  if (worker.size == kWarp) {
    uint32_t position = 0;
    if (worker.rank == 0)
      position = CopyWorker<Operation, CopyCrew::Thread>(cta, task, pointers).run(0);
    position = ptx::first_of_warp(position);
    if (position == 0) return;
    ptx::barrier_warp();
    CopyWorker<Operation, CopyCrew::Warp>(cta, task, pointers).run(position);
    return;
  }
  Handover& handover = handover_of(instruction, pointers);
  if (worker.rank < kWarp) {
    if (worker.rank == 0) drive_copy<Operation>(cta, task, worker, pointers, handover);
    return;
  }
  take_over_copy<Operation>(cta, task,
                            {worker.rank - kWarp, worker.size - kWarp, worker.barrier_id}, pointers,
                            handover.await());
}

/// Runs a worker that only waits for the peers that have its advertisements. Called by all its
/// threads.
template <typename Operation>
__device__ __forceinline__ void run_awaiting(const Cta& cta, const WorkerTask& task,
                                             const WorkerThreads& worker) {
  if constexpr (Operation::kReduces) {
    if (serves_pulls(cta, task)) {
      if (!ptx::has_bulk_copies()) {
        if (worker.rank < kWarp) PullServer<Operation, true>(cta, task).run();
      } else if (worker.rank == 0) {
        PullServer<Operation, false>(cta, task).run();
      }
    }
  }
  if (worker.rank == 0) await_takers(cta, task);
}

/// A worker of the Simple protocol, in the form that suits it.
template <typename Operation>
__device__ __forceinline__ void run_simple(const Cta& cta, const WorkerTask& task,
                                           const WorkerThreads& worker) {
  std::byte** pointers = cta.pointers + task.pointers;
  if (worker.rank == 0) {
    begin_plan(pointers);
    if (task.has(kCopiesStaged)) handover_of(cta.instructions[task.first], pointers).start();
  }
  // Done by another warp, if there is one: all work of the thread that copies before its first load
  // adds to the time of every operation.
  if (ptx::has_bulk_copies() && task.has(kCopiesStaged) &&
      worker.rank == (worker.size > kWarp ? kWarp : 0)) {
    using Ring = typename CopyWorker<Operation, CopyCrew::Thread>::Ring;
    Ring(cta.header.copy_stages, task.ring, /*operands=*/1).start();
  }
  worker.barrier();
  if (only_awaits(cta, task)) return run_awaiting<Operation>(cta, task, worker);
  if (task.has(kCopiesStaged)) return run_copy<Operation>(cta, task, worker, pointers);
  if constexpr (Operation::kReduces) {
    const CompactInstruction& first = cta.instructions[task.first];
    if (task.has(kReducesStaged) && run_reduce_worker<Operation>(cta, first, worker, pointers))
      return;
  }
  run_by_threads<Operation>(cta, task, worker, pointers);
}

/// kHasRelays: as ll_step()'s.
template <typename Operation, Protocol kProtocol, bool kHasRelays = false>
__device__ __forceinline__ void run_kernel(const LaunchArgs& args) {
  Prefetched prefetched{nullptr, 0};
  if constexpr (kProtocol == Protocol::LL) prefetched = prefetch_input<Operation>(args);
  Cta cta = start_cta<Operation, kProtocol == Protocol::Simple>(args);
  if constexpr (kProtocol == Protocol::Simple) {
    if (role_of_warp(args.header) == kServiceWorker) return serve_ports(cta);
  }
  const WorkerTask* task = enter_worker(args, cta);
  if (task == nullptr) return;
  const WorkerThreads worker{ptx::thread() - task->first_thread, task->threads, task->barrier};
  const CompactInstruction* first = cta.instructions + task->first;
  const uint32_t count = task->count;
  const uint32_t rounds = cta.work->partition.rounds;

  if constexpr (kProtocol == Protocol::LL) {
    bool live = true;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < count; ++i) {
        ll_step<Operation, kHasRelays>(cta, worker, first[i], round, prefetched, live);
      }
    }
  } else if constexpr (kProtocol == Protocol::LL128) {
    bool live = true;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < count; ++i)
        ll128_step<Operation>(cta, worker, first[i], round, live);
    }
  } else {
    run_simple<Operation>(cta, *task, worker);
  }
}

}  // namespace niccolite::executor::cuda
