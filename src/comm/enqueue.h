// OperationQueue: from the calls of one communicator to work on streams. An operation is *prepared*
// (planned, connected: may allocate and wait for peers' processes) and then *launched* (one call of
// the driver). Groups prepare all before they launch any. Preparation is remembered: repeating an
// operation only launches. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <unordered_map>

#include "base/wait.h"
#include "comm/launcher.h"
#include "comm/stream_order.h"
#include "planner/plan.h"
#include "transport/endpoint.h"

namespace niccolite::comm {

struct AllReduceTask {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  executor::DataType type = executor::DataType::Uint8;
  planner::Operation operation = planner::Operation::Sum;
  gpu::StreamHandle stream = nullptr;

  size_t bytes() const { return count * executor::size_of(type); }
};

/// A planned and connected operation. Owned by the queue; stays valid for as long as a group holds
/// it.
struct Prepared {
  planner::Plan plan;
  std::unique_ptr<Launcher> launcher;
};

class OperationQueue {
 public:
  /// `endpoint` is null for a communicator of one rank. `abort` ends waits.
  OperationQueue(gpu::Machine& machine, int device, int rank, const planner::Settings& settings,
                 transport::Endpoint* endpoint, const executor::ControlWords* control);

  /// For count > 0 and more than one rank.
  Result<std::shared_ptr<Prepared>> prepare(const AllReduceTask& task, const Deadline& deadline);
  /// `prepared` may be null for one rank: the operation is then a copy.
  Status launch(const AllReduceTask& task, Prepared* prepared);

 private:
  struct Key {
    size_t count;
    executor::DataType type;
    planner::Operation operation;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return (key.count * 64 + static_cast<size_t>(key.type) * 8 +
              static_cast<size_t>(key.operation)) *
             0x9e3779b97f4a7c15u;
    }
  };

  gpu::Machine& machine_;
  const int device_;
  const int rank_;
  transport::Endpoint* const endpoint_;
  const executor::ControlWords* const control_;
  planner::Planner planner_;
  StreamOrder order_;
  std::unordered_map<Key, std::shared_ptr<Prepared>, Hash> prepared_;  // at most kMostPrepared
};

}  // namespace niccolite::comm
