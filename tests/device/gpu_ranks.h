// The ranks of an operation on real GPUs, all in this process: memory, connections, streams.
// Ranks are dealt to the GPUs in turn; several may share one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/cuda/launch/prepared_launch.h"
#include "gpu/machine.h"
#include "tests/device/operation.h"

namespace niccolite::device_test {

class GpuRanks {
 public:
  /// Connections and scratch memory for `operation`; buffers of `buffer_bytes`
  /// bytes for input and for output, of the kind that it says.
  static Result<GpuRanks> create(gpu::Machine& machine, int ngpus, const Operation& operation,
                                 Programs programs, size_t buffer_bytes);

  int nranks() const { return static_cast<int>(ranks_.size()); }
  int device(int rank) const { return at(rank).device; }
  gpu::StreamHandle stream(int rank) const { return at(rank).stream.handle(); }
  std::byte* input(int rank) const { return static_cast<std::byte*>(at(rank).input.data()); }
  std::byte* output(int rank) const { return static_cast<std::byte*>(at(rank).output.data()); }

  /// `operation` may differ from the one of create() in all but collective, algorithm, root,
  /// messages, ranks, protocol and shape, and be no larger.
  Result<executor::cuda::PreparedLaunch> prepare(int rank, const Operation& operation,
                                                 const std::byte* input, std::byte* output);
  /// Waits until all ranks' streams are empty. When they are not at the deadline, aborts what runs:
  /// the ranks are of no use then. RemoteError names the ranks that had not ended.
  Status finish(Deadline deadline);
  /// Tells the kernels to end, and waits for them.
  Status abort_and_wait(Deadline deadline);
  void abort();
  /// What waits have told the host so far (executor/report.h).
  uint64_t report() const;

 private:
  struct Rank {
    int device = 0;
    gpu::Stream stream;
    gpu::Memory connections;
    gpu::Memory input;
    gpu::Memory output;
    gpu::Memory scratch;
  };
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Result<std::vector<int>> running_at(Deadline deadline);

  gpu::Machine* machine_ = nullptr;
  Programs programs_;
  std::unique_ptr<Wiring> wiring_;
  gpu::Memory control_;  // executor::ControlWords
  std::vector<Rank> ranks_;
  std::vector<std::byte*> addresses_;
};

}  // namespace niccolite::device_test
