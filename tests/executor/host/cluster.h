// Cluster: all ranks of one algorithm in one process, with connections in ordinary memory, run by
// the host executor without a GPU: their tasks are stepped in a random order on one thread, or on
// several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "executor/host/kernel.h"
#include "executor/launch.h"
#include "schedule/schedule.h"

namespace niccolite::executor::host {

/// Zeroed bytes at any wanted distance from an alignment of 128, between guard bytes that are
/// checked.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes, size_t misalignment = 0);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool guards_intact() const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
  size_t bytes_;
};

/// The memory of one connection; see executor/protocol/fifo.h.
struct ConnectionMemory {
  explicit ConnectionMemory(const FifoShape& shape);
  ControlBlock& sender(uint32_t channel) const { return sender_control[channel]; }
  ControlBlock& receiver(uint32_t channel) const { return receiver_control[channel]; }

  FifoShape shape;
  GuardedMemory slots;
  std::unique_ptr<ControlBlock[]> sender_control;
  std::unique_ptr<ControlBlock[]> receiver_control;
};

/// Where the operands of one operation are, by rank.
struct OperationBuffers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

struct OperationArguments {
  uint64_t count = 0;
  DataType type = DataType::Float32;
  Reduction reduction{};
};

class Cluster {
 public:
  Cluster(schedule::Schedule schedule, Protocol protocol, const FifoShape& shape);

  int nranks() const { return schedule_.nranks; }
  uint64_t elements_per_slot(DataType type) const;
  int nblocks() const { return schedule_.nblocks; }
  std::vector<std::unique_ptr<ConnectionMemory>>& connections() { return connections_; }

  /// Lets all connections stand at `step`, as if that many slots had been sent and received, most
  /// of them nearly empty.
  void start_at(uint64_t step);

  std::vector<Launch> launches(const OperationArguments& arguments,
                               const OperationBuffers& buffers);
  std::vector<std::unique_ptr<gpu::virtual_::Task>> tasks(const std::vector<Launch>& launches);

  /// Runs tasks to their end in an order drawn from `seed`. False: all of them would block, which
  /// is a deadlock.
  static bool run(std::vector<std::unique_ptr<gpu::virtual_::Task>> tasks, uint32_t seed);
  /// Runs tasks to their end on `threads` threads.
  static void run_threaded(std::vector<std::unique_ptr<gpu::virtual_::Task>> tasks, int threads);

  bool guards_intact() const;
  /// Do both ends of all connections agree on how far they are, and does every sender know it or
  /// will when next used?
  bool counters_consistent() const;

  ControlWords control{};

 private:
  schedule::Schedule schedule_;
  Protocol protocol_;
  FifoShape shape_;
  std::vector<std::shared_ptr<const Program>> programs_;        // by rank
  std::vector<std::vector<PortAddress>> ports_;                 // by rank
  std::vector<std::unique_ptr<ConnectionMemory>> connections_;  // as in the schedule
  GuardedMemory scratch_{128};                                  // grown as needed
};

}  // namespace niccolite::executor::host
