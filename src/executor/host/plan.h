// Plan: a Launch that has been checked and prepared for the CPU; shared by all its executions (a
// graph has many). Thread safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "executor/buffer_needs.h"
#include "executor/host/reduce.h"
#include "executor/launch.h"
#include "executor/list_tiles.h"

namespace niccolite::gpu::virtual_ {
class VirtualMachine;
}

namespace niccolite::executor::host {

class Plan {
 public:
  /// Whatever buffers it has; its workers as lowering plans them for virtual GPUs. InternalError,
  /// naming the fault, when the launch cannot be run: these are our own mistakes, not the
  /// user's.
  static Result<Plan> create(Launch launch);
  /// With these plans of the program's workers. Further errors: check_plan().
  static Result<Plan> create(Launch launch, std::vector<lowering::WorkerPlan> workers);
  /// Returns this plan for other buffers, by work, another Launch::number, and on `machine`.
  /// InternalError when there is one too few.
  Result<Plan> with_buffers(std::span<const Buffers> buffers, uint64_t number,
                            gpu::virtual_::VirtualMachine* machine) const;
  /// Are there all buffers that the works need?
  Status check_buffers() const;

  const Launch& launch() const { return launch_; }
  /// That it runs on, which finds the memory of a team; null: nobody has said.
  gpu::virtual_::VirtualMachine* machine() const { return machine_; }
  const Program& program() const { return *launch_.program; }
  const Reducer& reducer() const { return reducer_; }
  size_t element_bytes() const { return reducer_.element_bytes(); }

  /// The positions of a list's channels, as share_list_tiles() returns them.
  const std::vector<ListPosition>& list_starts() const { return tables_->list_starts; }

  // The following serve all launches but lists.
  /// The work whose data the program's worker `worker` moves.
  const Work& work_of(size_t worker) const { return launch_.works[program().workers[worker].work]; }
  /// Does the worker run on this channel of its work's partition?
  bool runs_on(size_t worker, uint32_t channel) const;

  /// A port belongs to one worker. This is the number of `port` among the worker's.
  uint16_t port_in_worker(uint16_t port) const { return tables_->port_in_worker[port]; }
  /// The ports of a worker, in that order.
  const std::vector<uint16_t>& ports_of(size_t worker) const { return tables_->ports_of[worker]; }

  /// Lowering's plan of the program's worker. Channels share its tiles (Tiles::Dynamic) where all
  /// that it gets and puts is reached.
  const lowering::WorkerPlan& worker(size_t worker) const { return tables_->workers[worker]; }

 private:
  /// Data that depends on the program alone; shared by plans for different buffers.
  struct Tables {
    std::vector<uint16_t> port_in_worker;
    std::vector<std::vector<uint16_t>> ports_of;  // by worker
    std::vector<lowering::WorkerPlan> workers;
    std::vector<ListPosition> list_starts;  // of a list, which has nothing else of all this
  };
  Plan(Launch launch, std::vector<lowering::WorkerPlan> workers,
       const std::vector<int>& workers_of_ports);

  Launch launch_;
  gpu::virtual_::VirtualMachine* machine_ = nullptr;
  Reducer reducer_;
  BufferNeeds needs_;
  std::shared_ptr<const Tables> tables_;
};

}  // namespace niccolite::executor::host
