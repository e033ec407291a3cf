// Graph: work and its order, captured from streams, and what must live as long. Executable: a
// frozen copy that can be launched any number of times; two launches of one executable never
// overlap. Capture: a graph in the making.
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
  bool is_open = false;  // a record that may yet come after more, also later, nodes; nothing comes
                         // after it
};

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
  std::vector<Node> nodes;  // in an order that respects `after`, open nodes apart
  std::vector<std::shared_ptr<UserObject>> kept;

  NodeIndex add(Work work, std::vector<NodeIndex> after);
  /// The nodes that no other node waits for.
  std::vector<NodeIndex> leaves() const;
  /// What streams have queued and no other work of streams waits for.
  std::vector<NodeIndex> tips() const;
  bool has_all(const std::vector<NodeIndex>& indices) const;
  Graph copy() const { return {nodes, kept}; }

 private:
  std::vector<NodeIndex> leaves_without(bool open_nodes) const;
};

struct Executable {
  std::shared_ptr<const Graph> graph;
  OperationPtr last_replay;  // end of the last launch; under Runtime's mutex
};

/// One execution of `graph`: operations that are not yet submitted. All begin after `first`; `last`
/// is after all.
struct Replay {
  OperationPtr first;
  OperationPtr last;
  std::vector<OperationPtr> operations;  // one per node
  explicit Replay(const std::shared_ptr<const Graph>& graph);
};

enum class CaptureMode : uint8_t { Global = 0, ThreadLocal = 1, Relaxed = 2 };

struct Capture {
  uint64_t id = 0;
  CaptureMode mode = CaptureMode::Global;
  std::thread::id thread;
  Stream* origin = nullptr;  // where it began; identity only
  std::shared_ptr<Graph> graph;
  void* graph_handle = nullptr;
  bool is_invalidated = false;
  std::vector<std::weak_ptr<Stream>> streams;  // those that take part
};

}  // namespace niccolite::gpu::virtual_
