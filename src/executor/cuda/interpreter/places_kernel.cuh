// The interpreter for programs by Simple with chunks that need no slot at connections to other
// machines (places.cuh). There are no stages: the network's device moves most data, and threads
// move the rest. Only registered buffers of the user have places. Launches without them run by
// kernel.cuh, whose code knows none of this.
#pragma once

#include "executor/cuda/interpreter/kernel.cuh"

namespace niccolite::executor::cuda {

/// Runs a worker. Called by all its threads.
template <typename Operation>
__device__ __forceinline__ void run_in_places(const Cta& cta, const WorkerTask& task,
                                              const WorkerThreads& worker, std::byte** pointers) {
  const bool leads = worker.rank == 0;
  const CompactInstruction* const first = cta.instructions + task.first;
  const uint32_t count = task.count;
  bool live = true;
  if (leads) make_places<Operation>(cta, task.first, /*round=*/0);
  for (uint32_t round = 0; live && round < cta.work->partition.rounds; ++round) {
    for (uint32_t i = 0; live && i < count; ++i) {
      live = simple_step<Operation>(cta, worker, first[i], round, count == 1, pointers);
      if (!live || !leads) continue;
      const bool ends_round = i + 1 == count;
      make_places<Operation>(cta, task.first + (ends_round ? 0 : i + 1),
                             round + (ends_round ? 1 : 0));
    }
  }
  worker.barrier();  // behind the last set_sent_from_place()
  if (leads && !(live && await_acknowledgements(cta))) leave_advertisements(cta);
}

template <typename Of>
__device__ __forceinline__ void run_with_places(const LaunchArgs& args) {
  using Operation = WithPlaces<Of>;
  Cta cta = start_cta<Operation, /*kAdvertises=*/true>(args);
  if (role_of_warp(args.header) == kServiceWorker)
    return serve_ports</*kByTeam=*/false, /*kHasPlaces=*/true>(cta);
  const WorkerTask* const task = enter_worker(args, cta);
  if (task == nullptr) return;
  const WorkerThreads worker{ptx::thread() - task->first_thread, task->threads, task->barrier};
  std::byte** const pointers = cta.pointers + task->pointers;
  if (worker.rank == 0) begin_plan(pointers);
  worker.barrier();
  if (only_awaits(cta, *task)) {
    if (worker.rank == 0) await_takers(cta, *task);
    return;
  }
  run_in_places<Operation>(cta, *task, worker, pointers);
}

}  // namespace niccolite::executor::cuda
