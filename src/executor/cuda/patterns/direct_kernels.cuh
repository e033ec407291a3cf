// The kernels of programs of one step: of a collective, of lists, of messages.
#pragma once

#include "executor/cuda/interpreter/dependent_launch.cuh"
#include "executor/cuda/patterns/direct.cuh"
#include "executor/cuda/patterns/direct_lines.cuh"
#include "executor/cuda/patterns/direct_list.cuh"

namespace niccolite::executor::cuda {

/// A collective: one work, one task.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach,
          Counters kCounters = Counters::InGpu>
__device__ __forceinline__ void run_direct(const LaunchArgs& args) {
  if constexpr (Operation::kReduces) begin_short();  // other kernels: copy_kernels.cu
  const auto& params =
      *reinterpret_cast<const OneStepParams<kMostPeers>*>(args.tables + sizeof(WorkTask));
  Direct<Operation, kMostPeers, kSendsEach, kCounters>(
      args.header, *work_tasks(args), params.task,
      {ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)}, ptx::replica())
      .run(params.cut);
}

/// A reduction by LL128.
template <typename Operation, uint32_t kMostPeers>
__device__ __forceinline__ void run_direct_lines(const LaunchArgs& args) {
  begin_short();
  const auto& params =
      *reinterpret_cast<const OneStepParams<kMostPeers>*>(args.tables + sizeof(WorkTask));
  DirectLines<Operation, kMostPeers>(
      args.header, *work_tasks(args), params,
      {ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)}, ptx::replica())
      .run();
}

/// Collectives by one program, each CTA's one after the other.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach>
__device__ __forceinline__ void run_list(const ListArgs& args) {
  const auto& list = *reinterpret_cast<const ListParams<kMostPeers>*>(args.tables);
  const uint32_t size = ptx::threads() / list.teams;
  const WorkerThreads threads{ptx::thread() % size, size, static_cast<uint32_t>(Barrier::Cta)};
  Direct<Operation, kMostPeers, kSendsEach, Counters::InGpu, /*kIsList=*/true>(
      args.header, list, list.task, threads, ptx::replica())
      .run_list();
}

/// Collectives over buffers that all ranks reach.
template <typename Operation, uint32_t kMostPeers>
__device__ __forceinline__ void run_direct_list(const ListArgs& args) {
  DirectList<Operation, kMostPeers>(
      args.header, *reinterpret_cast<const DirectListParams<kMostPeers>*>(args.tables))
      .run();
}

/// Messages, which must not wait for each other: each has warps of its own.
template <Counters kCounters>
__device__ __forceinline__ void run_messages(const LaunchArgs& args) {
  const auto& params =
      *reinterpret_cast<const MessagesParams*>(args.tables + args.header.params_at);
  const MessageTask& message = params.messages[params.message_of_warp(ptx::thread() / kWarp)];
  const WorkTask& work = work_tasks(args)[message.work];
  if (ptx::replica() >= work.partition.channels) {
    if ((args.header.flags & kTakesTurns) != 0) ptx::barrier_cta();
    return;
  }
  Direct<CopyOperation, 1, /*kSendsEach=*/false, kCounters>(
      args.header, work, message.task,
      {ptx::thread() - message.first_thread, message.threads, message.barrier}, ptx::replica())
      .run();
}

}  // namespace niccolite::executor::cuda
