// WorkInFlight: knows when operations are done that nothing orders but their streams. An event
// stands for the last operation on each stream, and one more for each stream of a capture, which
// every launch of the graph records anew. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "gpu/graphs.h"
#include "operations/graph_uses.h"
#include "operations/stream_key.h"

namespace niccolite::operations {

class WorkInFlight {
 public:
  /// `graphs` hears of each capture.
  WorkInFlight(gpu::Graphs& machine, int device, std::shared_ptr<GraphUses> graphs)
      : machine_(machine), device_(device), graphs_(std::move(graphs)) {}

  /// To be called before an operation is queued on `stream`, and after it was queued. Afterwards
  /// the stream may be destroyed.
  Status before(gpu::StreamHandle stream);
  Status after(gpu::StreamHandle stream);

  /// Waits until all operations so far, and all launches of graphs that hold some, are done: true,
  /// or false at the deadline. Disturbs no capture.
  Result<bool> drain(Deadline deadline);

 private:
  struct Live {
    uint64_t stream = 0;  // stream_id()
    std::shared_ptr<gpu::Event> event;
  };
  struct Captured {
    uint64_t capture = 0;
    StreamKey stream;
    std::shared_ptr<gpu::Event> event;
    gpu::GraphNode record = nullptr;
    gpu::CapturePoint last;  // `record` comes after this point
  };

  Status after_captured(gpu::StreamHandle stream);
  void forget_done();

  gpu::Graphs& machine_;
  const int device_;
  const std::shared_ptr<GraphUses> graphs_;
  std::vector<Live> live_;
  std::vector<Captured> captured_;
  // State of the operation between before() and after():
  uint64_t capture_ = 0;  // 0: live
  uint64_t stream_ = 0;   // stream_id(), of a live one
};

}  // namespace niccolite::operations
