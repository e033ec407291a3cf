// The kernels of programs of one step: of a collective, of lists, of messages.
#pragma once

#include "executor/cuda/direct.cuh"
#include "executor/cuda/direct_list.cuh"
#include "executor/cuda/progress.cuh"

namespace niccolite::executor::cuda {

/// A collective: one work, one task.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach, bool kInHost = false>
__device__ __forceinline__ void run_direct(const LaunchArgs& args) {
  using Kernel = Direct<Operation, kMostPeers, kSendsEach, kInHost>;
  const auto& task =
      *reinterpret_cast<const typename Kernel::Task*>(args.tables + sizeof(WorkTask));
  Kernel(args.header, *work_tasks(args), task,
         {ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)}, ptx::replica())
      .run();
}

/// Collectives by one program, each CTA's one after the other.
template <typename Operation, uint32_t kMostPeers>
__device__ __forceinline__ void run_list(const LaunchArgs& args) {
  const auto& list = *reinterpret_cast<const ListParams<kMostPeers>*>(args.tables);
  const WorkerThreads threads{ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)};
  Direct<Operation, kMostPeers, /*kSendsEach=*/false, /*kInHost=*/false, /*kIsList=*/true>(
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
template <bool kInHost>
__device__ __forceinline__ void run_messages(const LaunchArgs& args) {
  const auto& params =
      *reinterpret_cast<const MessagesParams*>(args.tables + args.header.params_at);
  const MessageTask& message = params.messages[params.message_of_warp(ptx::thread() / kWarp)];
  const WorkTask& work = work_tasks(args)[message.work];
  if (ptx::replica() >= work.partition.channels) {
    if ((args.header.flags & kTakesTurns) != 0) ptx::barrier_cta();
    return;
  }
  Direct<CopyOperation, 1, /*kSendsEach=*/false, kInHost>(
      args.header, work, message.task,
      {ptx::thread() - message.first_thread, message.threads, message.barrier}, ptx::replica())
      .run();
}

}  // namespace niccolite::executor::cuda

/// Define the kernel niccolite_<name>; see NICCOLITE_KERNEL.
#define NICCOLITE_DIRECT_KERNEL(name, Operation, kMostPeers, kSendsEach, kInHost)            \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::mark_begin(args.header);                                      \
    niccolite::executor::cuda::run_direct<Operation, kMostPeers, kSendsEach, kInHost>(args); \
    niccolite::executor::cuda::mark_end(args.header);                                        \
  }
#define NICCOLITE_LIST_KERNEL(name, Operation, kMostPeers)                                   \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::mark_begin(args.header);                                      \
    niccolite::executor::cuda::run_list<Operation, kMostPeers>(args);                        \
    niccolite::executor::cuda::mark_end(args.header);                                        \
  }
#define NICCOLITE_DIRECT_LIST_KERNEL(name, Operation, kMostPeers)                          \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)  \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::ListArgs args) { \
    niccolite::executor::cuda::mark_begin(args.header);                                    \
    niccolite::executor::cuda::run_direct_list<Operation, kMostPeers>(args);               \
    niccolite::executor::cuda::mark_end(args.header);                                      \
  }
