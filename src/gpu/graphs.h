// Graphs: streams that can be captured into graphs, and the graphs. A graph is made of work that is
// queued on a stream, so that every user of graphs is one of streams. Thread safety: any thread, as
// all of Machine (machine.h).
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/streams.h"

namespace niccolite::gpu {

enum class CaptureState : unsigned char { None, Active, Invalidated };
struct Capture {
  CaptureState state = CaptureState::None;
  uint64_t id = 0;  // of the capture sequence, when Active; never used again in this process
};

using GraphNode = void*;
/// A place in a graph that is being captured: what a stream's next work comes after. Means nothing
/// once the capture has ended.
struct CapturePoint {
  void* graph = nullptr;
  std::vector<GraphNode> nodes;
};

class Graphs;

/// An instantiated (executable) graph.
class Graph : public Owner<Graphs, Graph> {
 public:
  using Owner<Graphs, Graph>::Owner;

 private:
  friend Owner<Graphs, Graph>;
  static Status give_back(Graphs& from, void* handle);
};

class Graphs : public Streams {
 public:
  virtual Result<Capture> capture_of(int device, StreamHandle stream) = 0;
  virtual Status begin_capture(int device, StreamHandle stream) = 0;  // thread-local mode
  virtual Result<Graph> end_capture(int device, StreamHandle stream) = 0;
  virtual Status launch_graph(const Graph& graph, int device, StreamHandle stream) = 0;
  /// Work that is queued into a capture may need an object as long as the graph (or any executable
  /// made of it) lives: calls release(object) when the last is destroyed, on any thread; it must
  /// not call the GPU. Only while `stream` is capturing.
  virtual Status keep_in_graph(int device, StreamHandle stream, void* object,
                               void (*release)(void*)) = 0;

  // ---- the graph of a capture in progress, node by node. A graph does not keep an event alive:
  // one that it names must not be destroyed before it (see keep_in_graph).
  /// Where `stream` is in the graph that it captures into. InvalidUsage if it is not capturing.
  virtual Result<CapturePoint> capture_point(int device, StreamHandle stream) = 0;
  /// The next work of `stream` comes after `point`, a place in the same graph, too.
  virtual Status capture_after(int device, StreamHandle stream, const CapturePoint& point) = 0;
  /// Adds work to `stream`, which is capturing: to wait, at each launch of the graph, for what
  /// `event` recorded last before that launch. wait_event() would wait for work of the same graph.
  virtual Status wait_event_at_launch(int device, StreamHandle stream, const Event& event) = 0;
  /// Adds a node that records `event` at each launch of the graph, when all of `point` is done. It
  /// counts as a record from the launch call on. No work of any stream comes after the node.
  virtual Result<GraphNode> record_event_at_launch(int device, const CapturePoint& point,
                                                   const Event& event) = 0;
  /// The node of record_event_at_launch(), which was to come after `from`, comes after `to`
  /// instead. They have no node in common.
  virtual Status move_record(int device, GraphNode record, const CapturePoint& from,
                             const CapturePoint& to) = 0;

 protected:
  friend class Graph;
  ~Graphs() = default;
  virtual Status release_graph(void* handle) = 0;
};

}  // namespace niccolite::gpu
