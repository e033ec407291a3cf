// StreamOrder: makes the operations of one communicator run one after the other, in the order in
// which the host launches them, whatever streams they are queued on and whether they are live or
// captured in graphs: they share connections, whose counters the next operation reads.
//
// One event E always stands for the communicator's last work.
//
//   live operation       waits for E unless its stream orders it already, and records E anew
//   captured operation   the first one of a capture comes after a node that waits, at each launch
//                        of the graph, for E as it is then; the last one comes before a node that
//                        records E, which moves on with each operation and is in nobody's way.
//                        Within the capture, operations of several streams are chained by edges.
//
// A launch of a graph thus counts as an operation, at its place in the host's order. Why so, and
// what depends on it: docs/design/ordering.md. Thread safety: one thread at a time, the launches
// of the communicator's graphs included.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/graphs.h"
#include "operations/graph_uses.h"
#include "operations/stream_key.h"

namespace niccolite::operations {

class StreamOrder {
 public:
  /// `graphs_mix` false: the program promises that a graph of this communicator never runs beside
  /// other work of it (ncclConfig_t::graphUsageMode 0 or 1); graphs then hold nothing but the
  /// operations. `graphs` hears of each capture.
  StreamOrder(gpu::Graphs& machine, int device, bool graphs_mix = true,
              std::shared_ptr<GraphUses> graphs = std::make_shared<GraphUses>())
      : machine_(machine), device_(device), graphs_mix_(graphs_mix), graphs_(std::move(graphs)) {}

  /// To be called before an operation is queued on `stream`.
  Status before(gpu::StreamHandle stream);
  /// Does the same with the stream's `capture`, which the caller has just looked up.
  Status before(gpu::StreamHandle stream, const gpu::Capture& capture);
  /// To be called after it was queued, on the same stream. Once it has returned, the stream may be
  /// destroyed.
  Status after(gpu::StreamHandle stream);
  /// Was that operation captured in a graph?
  bool is_captured() const { return is_captured_; }
  /// Was that operation captured right after the one before, and after nothing else?
  bool follows_last() const { return follows_last_; }
  /// The stream of that operation, as gpu::Streams::stream_id() has it; none of a captured one.
  std::optional<uint64_t> stream() const {
    return is_captured_ ? std::nullopt : std::optional(stream_);
  }

  /// Waits until all operations so far, and all launches of graphs that hold some, are done: true,
  /// or false at the deadline. Disturbs no capture, unless graphs do not mix and there were some.
  Result<bool> drain(Deadline deadline);
  bool has_begun() const { return has_live_ || has_captured_; }
  /// E. Nobody else records it.
  Result<std::shared_ptr<gpu::Event>> last_work();
  /// An event for all operations so far. Once there was one; by any thread.
  Result<std::shared_ptr<gpu::Event>> mark();

 private:
  struct Captured {
    uint64_t capture = 0;
    StreamKey stream;                 // of the last operation
    gpu::CapturePoint last;           // the next operation comes after this point
    gpu::GraphNode record = nullptr;  // of E, after `last`; null while there was no work
    bool has_work = false;            // `last` is of an operation
  };

  Status before_captured(gpu::StreamHandle stream, uint64_t capture);
  Status after_captured(gpu::StreamHandle stream);
  Status begin_capture(gpu::StreamHandle stream, uint64_t capture);

  gpu::Graphs& machine_;
  const int device_;
  const bool graphs_mix_;
  const std::shared_ptr<GraphUses> graphs_;
  std::shared_ptr<gpu::Event> last_work_;  // E, once it is wanted; graphs share it
  std::mutex marks_mutex_;
  gpu::Stream marks_ GUARDED_BY(marks_mutex_);  // mark() records on it
  bool has_live_ = false;
  bool has_captured_ = false;
  uint64_t live_stream_ = 0;  // stream_id() of the last live operation
  // State of the operation between before() and after():
  bool is_captured_ = false;
  bool follows_last_ = false;
  uint64_t stream_ = 0;             // stream_id(), of a live one
  gpu::CapturePoint start_;         // of a captured one
  std::vector<Captured> captures_;  // the last one used is the last; at most kMostCaptures
};

}  // namespace niccolite::operations
