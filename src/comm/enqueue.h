// OperationQueue: from the calls of one communicator to work on streams. Calls are *prepared*
// (planned, connected: may allocate and wait for peers' processes) and then *launched* (one call of
// the driver each). Groups prepare all before they launch any. Preparation is remembered: repeating
// a call, or a group of the same calls, only launches. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/wait.h"
#include "comm/batches.h"
#include "comm/call_log.h"
#include "comm/launcher.h"
#include "comm/stream_order.h"
#include "comm/task.h"
#include "planner/plan.h"
#include "transport/endpoint.h"

namespace niccolite::comm {

/// One launch with its buffers: what launch() wants.
struct Ready {
  std::shared_ptr<Launcher> launcher;      // null: `buffers` are copied, each from input to output
  std::vector<Call> calls;                 // by work
  std::vector<executor::Buffers> buffers;  // the same
  std::vector<gpu::StreamHandle> streams;  // of the calls; the launch is on the first
  std::vector<size_t> bytes;               // of each copy
};

class OperationQueue {
 public:
  /// `endpoint` and `log` are null for a communicator of one rank. All outlive the queue.
  /// `graphs_mix`: see StreamOrder.
  OperationQueue(gpu::Machine& machine, int device, int rank, const planner::Settings& settings,
                 transport::Endpoint* endpoint, executor::ControlWords* control, CallLog* log,
                 bool graphs_mix = true);

  /// One collective by itself, of more than 0 elements: prepares and launches. Allocates nothing
  /// when it has been prepared before.
  Status run(const Task& task, const Deadline& deadline);

  /// The calls of a group, which outlive the result. Collectives have more than 0 elements.
  Result<std::vector<Ready>> prepare(std::span<const Task> tasks, const Deadline& deadline);
  Status launch(const Ready& ready);
  /// Waits until everything launched is done, launches of graphs included; false at the deadline.
  Result<bool> drain(Deadline deadline) { return order_.drain(deadline); }
  /// Microseconds that the calls of a group would take.
  Result<double> predict(std::span<const Task> tasks);

 private:
  struct Hash {
    size_t operator()(const planner::Request& request) const;
  };

  bool is_copy(const Call& call) const { return rank_alone_ && !call.request.op.scales(); }
  Result<std::shared_ptr<Launcher>> prepare_one(const Call& call, const Deadline& deadline);
  Result<std::shared_ptr<Launcher>> prepare_batch(const Batch& batch, const Deadline& deadline);
  Result<std::shared_ptr<Launcher>> bind(const planner::Plan& plan, executor::Launch launch,
                                         const Deadline& deadline);
  Result<planner::Plan> plan_batch(const Batch& batch, executor::Launch& launch);
  Status copy(const executor::Buffers& buffers, size_t bytes, gpu::StreamHandle stream);
  Status check_captures(std::span<const Task> tasks);
  void log_launch(std::span<const Call> calls);

  gpu::Machine& machine_;
  const int device_;
  const bool rank_alone_;
  transport::Endpoint* const endpoint_;
  executor::ControlWords* const control_;
  CallLog* const log_;
  planner::Planner planner_;
  StreamOrder order_;
  gpu::Event join_event_;  // of the streams of a batch
  // Each at most kMostPrepared.
  std::unordered_map<planner::Request, std::shared_ptr<Launcher>, Hash> collectives_;
  std::unordered_map<std::string, std::shared_ptr<Launcher>> batches_;  // by what is in them
};

}  // namespace niccolite::comm
