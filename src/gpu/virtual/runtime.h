// Runtime: the state of a process's virtual GPUs, with the semantics of the CUDA Runtime: devices,
// streams, events, capture, graphs, memory. Machine (machine.cc) and the CUDA names (vcuda/) are
// thin layers above it.
//
// Bodies by subject: streams.cc, events.cc, capture.cc, graphs.cc, graph_nodes.cc, runtime.cc.
// Streams are given as (device, handle): the special handles null and 1 mean the device's legacy
// default stream, 2 the calling thread's own. Thread safety: any thread. One mutex guards the order
// of all queues; it is held for the few pointer operations of a submission, never while work runs,
// and never over a callback.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/virtual/address_space.h"
#include "gpu/virtual/error.h"
#include "gpu/virtual/event.h"
#include "gpu/virtual/graph.h"
#include "gpu/virtual/handle_table.h"
#include "gpu/virtual/memory.h"
#include "gpu/virtual/operation.h"
#include "gpu/virtual/tasks.h"
#include "gpu/virtual/visible.h"

namespace niccolite::gpu::virtual_ {

inline constexpr int kVersion = 13000;  // of CUDA, whose names and rules these are
inline constexpr int kMaxDevices = 4096;

struct Stream {
  int device = 0;
  bool is_legacy = false;
  bool is_blocking = true;  // takes part in the ordering with the legacy stream
  int priority = 0;         // kept for the caller; workers serve all streams alike
  uint64_t id = 0;
  // Under Runtime's mutex:
  OperationPtr tail;  // the last operation queued
  std::shared_ptr<Capture> capture;
  std::vector<NodeIndex> capture_tips;  // the next captured node comes after them
  std::vector<void*> told_tips;         // their handles, as capture_dependencies() gave them last
};

using Edge = std::pair<void*, void*>;  // handles of nodes: from, to

struct CaptureInfo {
  CaptureState state = CaptureState::None;
  uint64_t id = 0;
  void* graph = nullptr;
};

class Runtime {
 public:
  /// Null when NICCOLITE_DEVICES names no valid number of virtual GPUs.
  static Runtime* instance();

  // ---- devices
  int device_count() const { return visible_.count(); }
  bool is_device(int device) const { return device >= 0 && device < device_count(); }
  const VisibleDevices& visible() const { return visible_; }
  Result<DeviceInfo> describe(int device) const;
  MemoryMap& memory() { return memory_; }
  AddressSpace& address_space() { return address_space_; }
  /// Returns the device of the calling thread.
  static int current_device();
  static void set_current_device(int device);
  /// As CUDA's runtime initialises the driver: has any thread called the runtime, and has the
  /// calling thread done so since the driver last took its context away? Then a primary context is
  /// current.
  static bool is_used();
  static bool& has_context();
  static void note_use();
  Error synchronize_device(int device);
  /// Waits for all work queued so far, captures apart; NotReady at the deadline.
  Error drain(int device, Deadline deadline);
  /// Sets `await` to a function that does that, for the work that is queued now.
  Error backlog(int device, std::function<Error(Deadline)>* await);

  // ---- streams
  Error create_stream(int device, bool blocking, int priority, StreamHandle* out);
  Error destroy_stream(StreamHandle stream);  // its work goes on
  /// The device, flags, ... of a stream; `device` counts for special handles only.
  Error stream_properties(int device, StreamHandle stream, Stream* out);
  /// Refused while the stream is capturing, as on CUDA.
  Error stream_id(int device, StreamHandle stream, uint64_t* out);
  /// Queues `work`, or adds it to the graph that the stream is capturing into.
  Error submit(int device, StreamHandle stream, Work work);
  Error synchronize_stream(int device, StreamHandle stream);
  Error query_stream(int device, StreamHandle stream);  // None or NotReady

  /// A copy or fill with both ends checked. As on CUDA, pageable host memory is read before the
  /// call returns, and written before it returns. `waits`: the call returns when all is done.
  Error copy(int device, StreamHandle stream, Copy copy, bool waits = false);
  Error set(int device, StreamHandle stream, Set set, bool waits = false);
  /// A wait for a word, or a store of one, at an address that has to be a multiple of its size.
  Error use_word(int device, StreamHandle stream, WaitValue wait);
  Error use_word(int device, StreamHandle stream, WriteValue write);

  // ---- events
  Error create_event(bool timing, void** out);
  Error destroy_event(void* event);
  /// `as_node`: while capturing, as a node that records, or waits for, the event at each launch;
  /// IllegalState when the stream is not capturing.
  Error record_event(void* event, int device, StreamHandle stream, bool as_node = false);
  Error wait_event(int device, StreamHandle stream, void* event, bool as_node = false);
  Error query_event(void* event);  // None or NotReady
  Error synchronize_event(void* event);
  /// Waits like synchronize_event(), but a captured event does not invalidate its capture; NotReady
  /// at the deadline.
  Error await_event(void* event, Deadline deadline);
  Error elapsed_milliseconds(void* start, void* stop, float* out);

  // ---- capture
  Error begin_capture(int device, StreamHandle stream, CaptureMode mode);
  /// Adds the work to a graph of the program's, after `nodes` of it.
  Error begin_capture_to(int device, StreamHandle stream, CaptureMode mode, void* graph,
                         const std::vector<void*>& nodes);
  Error end_capture(int device, StreamHandle stream, void** graph);
  Error capture_info(int device, StreamHandle stream, CaptureInfo* out);
  /// The nodes that the stream's next work comes after, and the graph that they are in.
  Error capture_point(int device, StreamHandle stream, void** graph, std::vector<NodeIndex>* nodes);
  /// Adds `nodes` of `graph`, which the stream is capturing into, to those.
  Error capture_after(int device, StreamHandle stream, void* graph,
                      const std::vector<NodeIndex>& nodes);
  /// Returns the nodes that the stream's next work comes after. They stay valid until the next
  /// call, or until work is added.
  Error capture_dependencies(int device, StreamHandle stream, void*** nodes, size_t* count);
  /// Adds `nodes` to that, or puts them in its place. InvalidValue: they are of another graph.
  Error change_capture_dependencies(int device, StreamHandle stream,
                                    const std::vector<void*>& nodes, bool replace);
  /// Adds a node to a graph that is being captured: a record of `event` after `after`, which may be
  /// moved later, and which nothing can come after.
  Error add_record_node(void* graph, const std::vector<NodeIndex>& after, void* event,
                        NodeIndex* out);
  /// As on CUDA, each edge of `from` must be there, and none of `to`.
  Error move_record_node(void* graph, NodeIndex record, const std::vector<NodeIndex>& from,
                         const std::vector<NodeIndex>& to);
  Error keep_in_capture(int device, StreamHandle stream, std::shared_ptr<UserObject> object);
  /// Whether a call that CUDA holds for unsafe during captures (allocation, event query) may go on;
  /// a refusal invalidates the captures concerned.
  Error check_unsafe_call();
  static CaptureMode exchange_capture_mode(CaptureMode mode);

  // ---- graphs
  Error create_graph(void** out);
  Error destroy_graph(void* graph);
  Error graph_size(void* graph, size_t* nodes);
  Error keep_in_graph(void* graph, std::vector<std::shared_ptr<UserObject>> objects);
  Error release_from_graph(void* graph, const UserObject* object, size_t count);
  Error instantiate(void* graph, void** executable);
  Error destroy_executable(void* executable);
  Error check_executable(void* executable);
  Error launch(void* executable, int device, StreamHandle stream);

  // ---- nodes of graphs, made and changed by hand; a handle that is none is an InvalidValue
  /// The events of RecordEvent and WaitEvent are named by their handles, the graph of a ChildGraph
  /// by its own, which is cloned. InvalidValue also for a copy or fill of bad memory, and where
  /// `after` has a node twice.
  Error add_node(void* graph, const std::vector<void*>& after, Work work, void** node);
  Error remove_node(void* node);
  Error node_work(void* node, Work* out);
  /// The new work must be of the same kind.
  Error set_node_work(void* node, Work work);
  Error add_edges(void* graph, const std::vector<Edge>& edges);
  Error remove_edges(void* graph, const std::vector<Edge>& edges);
  Error graph_nodes(void* graph, bool only_roots, std::vector<void*>* out);
  Error graph_edges(void* graph, std::vector<Edge>* out);
  /// The nodes that come right before it, or right after it.
  Error node_neighbours(void* node, bool after_it, std::vector<void*>* out);
  Error clone_graph(void* graph, void** out);
  Error find_in_clone(void* node, void* clone, void** out);
  /// Makes later launches run `graph`, which has the same nodes and edges but other work.
  /// GraphExecUpdateFailure: its nodes or edges differ, and `info` says how.
  Error update_executable(void* executable, void* graph, UpdateInfo* info);
  /// Updates one node of the graph from which the executable was made.
  Error set_executable_work(void* executable, void* node, Work work);

 private:
  struct Device {
    std::vector<std::shared_ptr<Stream>> streams;  // all that exist, without the legacy one
    struct Orphan {
      OperationPtr tail;
      bool is_blocking;
    };
    std::vector<Orphan> orphans;  // unfinished work of destroyed streams
  };
  struct ThreadStreams;

  explicit Runtime(VisibleDevices visible);

  std::shared_ptr<Stream> find_stream(int device, StreamHandle stream);
  std::shared_ptr<Stream> thread_stream(int device);
  std::shared_ptr<Stream> add_stream(int device, bool blocking, int priority);
  void retire(const std::shared_ptr<Stream>& stream);

  Error check_usable(Stream& stream) REQUIRES(mutex_);
  void append(Stream& stream, const OperationPtr& first, const OperationPtr& last) REQUIRES(mutex_);
  std::vector<OperationPtr> tails_to_wait_for(Stream& stream) REQUIRES(mutex_);
  std::vector<OperationPtr> unfinished_tails(int device) REQUIRES(mutex_);
  static Error wait(const std::vector<OperationPtr>& operations,
                    Deadline deadline = Deadline::never());
  Error refuse_while_capturing(Stream& stream) REQUIRES(mutex_);
  Error check_waiting_call(int device, StreamHandle stream);
  Error check_word(const void* address, size_t bytes, Use use,
                   MulticastPlace* place = nullptr) const;

  Error check_capture(Stream& stream) REQUIRES(mutex_);
  void capture_node(Stream& stream, Work work) REQUIRES(mutex_);
  void join_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture)
      REQUIRES(mutex_);
  std::shared_ptr<Capture> leave_capture(Stream& stream) REQUIRES(mutex_);
  Error capture_wait(const std::shared_ptr<Stream>& stream, Event& event) REQUIRES(mutex_);
  Graph* graph_in_capture(void* handle) REQUIRES(mutex_);

  std::shared_ptr<Graph> find_node(void* handle, NodeIndex* index) REQUIRES(mutex_);
  void* handle_of(const std::shared_ptr<Graph>& graph, NodeIndex index) REQUIRES(mutex_);
  Error indices_in(const std::shared_ptr<Graph>& graph, const std::vector<void*>& nodes,
                   std::vector<NodeIndex>* out) REQUIRES(mutex_);
  Error check_edge(const std::shared_ptr<Graph>& graph, const Edge& edge, NodeIndex* from,
                   NodeIndex* to) REQUIRES(mutex_);
  Error complete_work(Work& work);
  Error check_copy(Copy& copy) const;
  Error check_set(Set& set) const;
  Graph copy_of(const std::shared_ptr<Graph>& graph) REQUIRES(mutex_);
  void forget_handles(Graph& graph) REQUIRES(mutex_);
  bool is_capturing_into(const std::shared_ptr<Graph>& graph) REQUIRES(mutex_);

  const VisibleDevices visible_;
  const std::vector<std::shared_ptr<Stream>> legacy_;  // the default stream of each device
  MemoryMap memory_;
  AddressSpace address_space_;
  HandleTable<Stream, HandleKind::Stream> streams_;
  HandleTable<Event, HandleKind::Event> events_;
  HandleTable<Graph, HandleKind::Graph> graphs_;
  HandleTable<Executable, HandleKind::Executable> executables_;
  HandleTable<NodeReference, HandleKind::GraphNode> nodes_;

  std::mutex mutex_;  // before Operation's and Scheduler's
  std::vector<Device> devices_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ GUARDED_BY(mutex_);  // active ones
  uint64_t next_capture_id_ GUARDED_BY(mutex_) = 1;
  std::atomic<uint64_t> next_stream_id_;  // after the ids of the legacy streams
};

}  // namespace niccolite::gpu::virtual_
