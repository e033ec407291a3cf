// Graph: work and its order, captured from streams, and the objects that must live as long.
// Executable: a frozen copy that can be launched any number of times; two launches of one
// executable never overlap. Capture: a graph in the making.
//
// Thread safety: a Graph changes only under Runtime's mutex and never after it has been shared with
// an Executable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/virtual/operation.h"

namespace niccolite::gpu::virtual_ {

struct Stream;
using NodeIndex = uint32_t;

struct Node {
  Work work;
  std::vector<NodeIndex> after;
  bool is_open = false;   // a record that may yet come after more, also later, nodes; nothing comes
                          // after it
  bool is_loose = false;  // not of a stream's work: a capture may end without anything after it
  bool is_removed = false;  // by the program; its number is not given again
};

/// The type of a graph's node in CUDA, with CUDA's numbers.
enum class NodeKind : uint8_t {
  Kernel = 0,
  Copy = 1,
  Set = 2,
  Host = 3,
  Child = 4,
  Empty = 5,
  WaitEvent = 6,
  RecordEvent = 7,
  Words = 12
};
NodeKind kind_of(const Work& work);

/// Calls release(object) once, when its last holder is gone: on the thread that let go, with no
/// lock held.
class UserObject {
 public:
  UserObject(void* object, void (*release)(void*)) : object_(object), release_(release) {}
  UserObject(const UserObject&) = delete;
  ~UserObject() { release_(object_); }

 private:
  void* object_;
  void (*release_)(void*);
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<UserObject>> kept;
  std::vector<void*> handles;        // of nodes, as far as the program has seen them
  std::weak_ptr<Graph> cloned_from;  // whose nodes have the same indices
  bool is_child = false;             // it belongs to a node of another graph

  NodeIndex add(Work work, std::vector<NodeIndex> after);
  /// The nodes that no other node waits for.
  std::vector<NodeIndex> leaves() const;
  /// Returns the nodes that streams have queued and for which no other work of streams waits.
  std::vector<NodeIndex> tips() const;
  bool has_all(const std::vector<NodeIndex>& indices) const;
  /// Returns the graph without removed nodes, with the nodes of child graphs in place of the child
  /// graphs. Indices may change. `flat_of`, unless null, receives for each node its index in the
  /// result.
  Graph flatten(std::vector<NodeIndex>* flat_of = nullptr) const;
  bool has_cycle() const;

 private:
  void flatten_into(Graph& flat, const std::vector<NodeIndex>& after,
                    std::vector<NodeIndex>* flat_of, std::vector<NodeIndex>* flat_leaves) const;
  std::vector<NodeIndex> leaves_without(bool open_nodes) const;
};

/// All fields are guarded by Runtime's mutex.
struct Executable {
  std::shared_ptr<const Graph> graph;  // flat; replaced by another when it is updated
  std::weak_ptr<Graph> source;         // it was made from this graph
  std::vector<NodeIndex> flat_of;      // the node of `graph` that a node of `source` has become
  OperationPtr last_replay;            // end of the last launch
};

/// The program's handle of a node.
struct NodeReference {
  std::weak_ptr<Graph> graph;
  NodeIndex index;
};

/// Why an executable cannot become another graph, with CUDA's numbers.
enum class UpdateResult : uint8_t { Success = 0, Error = 1, TopologyChanged = 2, TypeChanged = 3 };
struct UpdateInfo {
  UpdateResult result = UpdateResult::Success;
  void* node = nullptr;  // of the other graph, that differs
};

/// One execution of `graph`: operations that are not yet submitted. All begin after `first`; `last`
/// is after all.
struct Replay {
  OperationPtr first;
  OperationPtr last;
  std::vector<OperationPtr> operations;  // one per node
  explicit Replay(const std::shared_ptr<const Graph>& graph);
  /// Abandons the operations that were not submitted.
  ~Replay();
  Replay(const Replay&) = delete;
};

enum class CaptureMode : uint8_t { Global = 0, ThreadLocal = 1, Relaxed = 2 };

struct Capture {
  uint64_t id = 0;
  CaptureMode mode = CaptureMode::Global;
  std::thread::id thread;
  Stream* origin = nullptr;  // where it began; identity only
  std::shared_ptr<Graph> graph;
  void* graph_handle = nullptr;
  bool owns_graph = true;  // it made it
  bool is_invalidated = false;
  std::vector<std::weak_ptr<Stream>> streams;  // the streams that take part
};

}  // namespace niccolite::gpu::virtual_
