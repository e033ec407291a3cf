// Machine: the library's only view of GPUs. Two implementations: gpu/cuda (the CUDA driver, opened
// at run time) and gpu/virtual (GPUs made of CPU threads and memfd memory). tests/conformance runs
// one suite on both.
//
// Handles that cross the C API are the caller's: `StreamHandle` is a cudaStream_t (equal to a
// CUstream), null for the legacy default stream, 1 and 2 for CUDA's special handles
// cudaStreamLegacy and cudaStreamPerThread. Thread safety: all functions may be called from any
// thread. Calls that name a device do not depend on the calling thread's current device and leave
// it as it was. Errors: CudaError for what the driver (or the virtual driver) refuses; the message
// names call, object and cause.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/wait.h"

namespace niccolite::gpu {

enum class Kind : unsigned char { Cuda, Virtual };

using StreamHandle = void*;

struct DeviceInfo {
  std::string name;  // "NVIDIA H200", "Virtual GPU"
  std::array<uint8_t, 16>
      uuid{};  // equal in all processes that see the same device, differs between devices and hosts
  std::string bus_id;  // "0000:1b:00.0"
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
  size_t total_bytes = 0;
};

enum class PointerKind : unsigned char {
  Unknown,
  Device,
  Host,
  Managed
};  // Host: page-locked or registered
struct PointerInfo {
  PointerKind kind = PointerKind::Unknown;
  int device = -1;       // owner, for Device and Managed
  void* base = nullptr;  // start of its allocation
  size_t bytes = 0;      // size of its allocation
  // Of the allocation: never used again in this process, though its address may be. 0 where the
  // driver does not tell.
  uint64_t id = 0;
  // A program mapped it by virtual memory management, so that one buffer may reach over several
  // mappings. Virtual GPUs alone tell.
  bool is_mapping = false;
};

/// Memory of a device, for all processes together.
struct DeviceMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

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

class EventWorkers;
class Machine;
class Multicast;

// Owners: move-only; destruction gives the object back to its machine (and logs what the driver
// refuses).
#define NICCOLITE_GPU_OWNER(Name, release_function)                                   \
  class Name {                                                                        \
   public:                                                                            \
    Name() = default;                                                                 \
    Name(Machine* machine, void* handle) : machine_(machine), handle_(handle) {}      \
    Name(Name&& other) noexcept                                                       \
        : machine_(other.machine_), handle_(std::exchange(other.handle_, nullptr)) {} \
    Name& operator=(Name&& other) noexcept {                                          \
      if (this != &other) {                                                           \
        reset();                                                                      \
        machine_ = other.machine_;                                                    \
        handle_ = std::exchange(other.handle_, nullptr);                              \
      }                                                                               \
      return *this;                                                                   \
    }                                                                                 \
    ~Name() { reset(); }                                                              \
    void* handle() const { return handle_; }                                          \
    /* It is somebody else's from now on. */                                          \
    void* release() { return std::exchange(handle_, nullptr); }                       \
    bool valid() const { return handle_ != nullptr; }                                 \
    void reset();                                                                     \
                                                                                      \
   private:                                                                           \
    Machine* machine_ = nullptr;                                                      \
    void* handle_ = nullptr;                                                          \
  };
NICCOLITE_GPU_OWNER(Stream, release_stream)
NICCOLITE_GPU_OWNER(Event, release_event)
NICCOLITE_GPU_OWNER(Graph, release_graph)  // an instantiated (executable) graph
// Shareable memory apart from its addresses: it is there as long as an owner, a mapping or an
// export of it is, whoever frees it at its first address.
NICCOLITE_GPU_OWNER(Physical, release_physical)
// Addresses kept for mappings; what is mapped there goes with them.
NICCOLITE_GPU_OWNER(Reservation, release_reservation)
// A memory pool of another process, from which allocations can be opened.
NICCOLITE_GPU_OWNER(PoolImport, release_pool_import)
#undef NICCOLITE_GPU_OWNER

/// Device memory, an imported mapping of another process's device memory, or page-locked host
/// memory.
class Memory {
 public:
  Memory() = default;
  Memory(Machine* machine, void* handle, void* data, size_t bytes, int device)
      : machine_(machine), handle_(handle), data_(data), bytes_(bytes), device_(device) {}
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory() { reset(); }

  void* data() const {
    return data_;
  }  // device address (equal to the host's for host memory and virtual GPUs)
  size_t bytes() const { return bytes_; }   // usable bytes, at least those asked for
  int device() const { return device_; }    // -1 for host memory
  void* handle() const { return handle_; }  // the machine's own
  bool valid() const { return data_ != nullptr; }
  void reset();

 private:
  Machine* machine_ = nullptr;
  void* handle_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = -1;
};

/// Names a user's allocation to other processes of this machine.
using AllocationName = std::array<std::byte, 64>;

/// Memory as it is mapped somewhere.
struct Backing {
  Physical memory;
  std::byte* base = nullptr;  // null for an import
  size_t bytes = 0;
  uint64_t id = 0;  // PointerInfo::id; 0 for an import
};
struct AddressRange {
  Reservation reservation;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;

  virtual Kind kind() const = 0;
  /// The threads that run kernels and can serve descriptors meanwhile; null: there are none.
  virtual EventWorkers* event_workers() { return nullptr; }
  /// Memory of several GPUs behind one address, where Multicast::has_multicast().
  virtual Multicast& multicast() = 0;
  virtual int device_count() const = 0;
  virtual Result<DeviceInfo> device_info(int device) = 0;
  /// Version of the CUDA driver, as cuDriverGetVersion gives it (13000 for 13.0); virtual GPUs
  /// report that of their shim.
  virtual int driver_version() const = 0;

  /// The calling thread's current device; 0 when it never chose one.
  virtual Result<int> current_device() = 0;
  virtual Status set_current_device(int device) = 0;

  // ---- memory
  /// The memory that could be allocated now. Too slow for every launch.
  virtual Result<DeviceMemory> device_memory(int device) = 0;
  /// `bytes` > 0 of zeroed device memory. Shareable memory can be exported to other processes.
  /// Waits for no stream of the user's (a kernel there may be waiting for this call's outcome).
  virtual Result<Memory> allocate(int device, size_t bytes, bool shareable) = 0;
  /// The same as a user's cudaMalloc makes it, for benchmarks and tests that stand for users. May
  /// wait for all streams of the device, also when it is given back.
  virtual Result<Memory> allocate_as_user(int device, size_t bytes) = 0;
  /// A descriptor by which another process of this machine may map `memory`. InvalidUsage if it is
  /// not shareable.
  virtual Result<Fd> export_memory(const Memory& memory) = 0;
  /// Maps memory that another process exported, for access by `device`. `bytes` as in the
  /// exporter's Memory::bytes().
  virtual Result<Memory> import_memory(int device, Fd fd, size_t bytes) = 0;
  /// A name for the whole allocation that `pointer` lies in, by which other processes of the same
  /// user can map it. CudaError: it is neither of cudaMalloc nor of an exportable memory pool.
  virtual Result<AllocationName> name_allocation(const void* pointer) = 0;
  /// Maps an allocation that another process has named, `bytes` long, for kernels of `device`, at
  /// the beginning of the allocation. `pool`: the import of its memory pool, which has to outlive
  /// the mapping; null: it is of cudaMalloc. Whoever frees it, its memory is there as long as a
  /// mapping is (CUDA). Giving the mapping back may wait for all kernels of `device`.
  virtual Result<Memory> open_allocation(int device, const AllocationName& name, size_t bytes,
                                         const PoolImport* pool) = 0;
  /// Identifies the memory pool that the memory at `pointer` was allocated from; null: none. A pool
  /// that is made after another's end may have its identity.
  virtual const void* pool_of(const void* pointer) = 0;
  /// A descriptor by which another process of this machine can import the memory pool that the
  /// memory at `pointer` was allocated from. CudaError: the pool was not made to be exported.
  virtual Result<Fd> export_pool(const void* pointer) = 0;
  /// Allocations of the pool can be opened for kernels of `device`. May take 20 ms; waits for no
  /// kernel.
  virtual Result<PoolImport> import_pool(int device, Fd fd) = 0;
  /// Gives what `memory`, which is shareable or an import, holds back to its device; its addresses
  /// stay taken, but nothing may use them until the memory is resumed or given back. An import lets
  /// go of the exporter's memory.
  virtual Status suspend_memory(const Memory& memory) = 0;
  /// Zeroed memory again, at the addresses of suspended shareable memory and with the same access.
  /// Exports from before do not stand for it.
  virtual Status resume_memory(const Memory& memory) = 0;
  /// The same of an import, suspended or not: maps what `fd`, exported anew, stands for.
  virtual Status resume_import(const Memory& memory, Fd fd) = 0;
  /// Can kernels of `device` load and store in memory of `peer`?
  virtual bool can_access_peer(int device, int peer) = 0;
  /// May paths between GPUs be broken for which can_access_peer() is true, so that they have to be
  /// tried?
  virtual bool doubts_peer_access() = 0;
  /// Does the link between the two keep what a warp stores to one line of 128 bytes together, so
  /// that whoever sees a part of the line sees all of it? Memory of one GPU does, and NVLink; PCIe
  /// may split a line. False, too, when it cannot be known.
  virtual bool keeps_lines_whole(int device, int peer) = 0;
  /// Can kernels of the two do atomic operations in each other's memory? False, too, when it cannot
  /// be known.
  virtual bool shares_atomics(int device, int peer) = 0;
  /// Lets kernels of `device` access what users of this process allocate on `peer` by cudaMalloc,
  /// now and later, for as long as the process lives; false when that cannot be, or when the two
  /// cannot do atomic operations in each other's memory. May wait for kernels of `device`. May be
  /// repeated.
  virtual bool open_buffers(int device, int peer) = 0;
  /// Can the devices that open_buffers() has let in use all of this memory of `device`'s users, at
  /// its own addresses? Opens it to them if need be. A fraction of a microsecond.
  virtual bool is_open(int device, const void* pointer, size_t bytes) = 0;
  /// Lets kernels of `device` access `memory` (a shareable allocation of this process).
  virtual Status grant_access(const Memory& memory, int device) = 0;
  /// `bytes` > 0 of zeroed page-locked host memory, accessible at the same address by the host and
  /// by every device.
  virtual Result<Memory> allocate_host(size_t bytes) = 0;
  /// The same, which export_memory() exports to other processes.
  virtual Result<Memory> allocate_shared_host(size_t bytes) = 0;
  /// Host memory that another process exported, `bytes` as in its Memory::bytes(): page-locked
  /// here, too. May wait for kernels of this process.
  virtual Result<Memory> import_host(Fd fd, size_t bytes) = 0;
  virtual Result<PointerInfo> pointer_info(const void* pointer) = 0;
  /// Copies host memory to device memory, at once: waits for nobody's work but its own.
  virtual Status upload(int device, void* target, const void* source, size_t bytes) = 0;

  // ---- memory mapped again, at addresses that the caller chooses
  /// Mappings begin and end at multiples of this, in bytes.
  virtual Result<size_t> mapping_granularity(int device) = 0;
  /// What `pointer` is mapped to: the whole mapping that it lies in. CudaError: memory that cannot
  /// be mapped again, as that of cudaMalloc.
  virtual Result<Backing> backing_of(const void* pointer) = 0;
  /// Is that of backing_of() still mapped where it was, so that `pointer` lies in it? For every
  /// launch.
  virtual bool is_mapped(const Backing& memory, const void* pointer) = 0;
  virtual Result<Fd> export_physical(const Physical& memory) = 0;
  /// Memory that another process exported, `bytes` long.
  virtual Result<Backing> import_physical(int device, Fd fd, size_t bytes) = 0;
  virtual Result<AddressRange> reserve_addresses(int device, size_t bytes, size_t alignment) = 0;
  /// Maps `pieces`, one behind the other, from `offset` of `range` on, for loads and stores by
  /// `devices`, at least one. The mapping keeps the memory alive.
  virtual Status map_physical(const AddressRange& range, size_t offset,
                              std::span<const Backing> pieces, const std::vector<int>& devices) = 0;

  // ---- streams and events
  virtual Result<Stream> create_stream(
      int device) = 0;  // does not synchronise with the legacy default stream
  virtual Status synchronize_stream(int device, StreamHandle stream) = 0;
  /// True when all work queued before the call is done.
  virtual Result<bool> query_stream(int device, StreamHandle stream) = 0;
  /// Names the stream that `stream` means to the calling thread: two handles of the legacy stream
  /// have one id, each thread's default stream has its own, and a new stream never has the id of
  /// one that is gone, though it may have its handle. A stream that is capturing must not be asked:
  /// that is refused, and invalidates its capture.
  virtual Result<uint64_t> stream_id(int device, StreamHandle stream) = 0;
  virtual Result<Capture> capture_of(int device, StreamHandle stream) = 0;
  virtual Result<Event> create_event(int device, bool timing) = 0;
  virtual Status record_event(const Event& event, int device, StreamHandle stream) = 0;
  virtual Status wait_event(int device, StreamHandle stream, const Event& event) = 0;
  virtual Status synchronize_event(const Event& event) = 0;
  /// Waits until what `event` recorded last is done: true, or false at the deadline. Disturbs no
  /// capture, whosever it is.
  virtual Result<bool> await_event(const Event& event, Deadline deadline) = 0;
  virtual Result<float> elapsed_milliseconds(const Event& start, const Event& stop) = 0;
  virtual Status copy_async(void* target, const void* source, size_t bytes, int device,
                            StreamHandle stream) = 0;
  virtual Status set_async(void* target, uint8_t value, size_t bytes, int device,
                           StreamHandle stream) = 0;
  /// Calls function(data) on a host thread when the stream gets there. It must not call the GPU.
  virtual Status call_host(int device, StreamHandle stream, void (*function)(void*),
                           void* data) = 0;

  /// Waits until all work queued so far on all streams of `device` by this process is done: true,
  /// or false at the deadline. Does not depend on streams that still exist. On CUDA not possible
  /// while a stream of the device is capturing: it is refused, and all such captures are
  /// invalidated.
  virtual Result<bool> drain(int device, Deadline deadline) = 0;

  // ---- graphs
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
  friend class Memory;
  friend class Stream;
  friend class Event;
  friend class Graph;
  friend class Physical;
  friend class Reservation;
  friend class PoolImport;
  virtual Status release_memory(void* handle) = 0;
  virtual Status release_stream(void* handle) = 0;
  virtual Status release_event(void* handle) = 0;
  virtual Status release_graph(void* handle) = 0;
  virtual Status release_physical(void* handle) = 0;
  virtual Status release_pool_import(void* handle) = 0;
  virtual Status release_reservation(void* handle) = 0;
};

/// The machine of this process, chosen once by NICCOLITE_DEVICES: "cuda", "virtual" or "virtual:N";
/// unset: virtual GPUs when the program has loaded their driver (its streams and buffers are
/// theirs), else CUDA when a driver and a device are there, else virtual GPUs. The same pointer for
/// ever; nobody owns it. Errors: CudaError when the chosen kind cannot be had, with the reason (no
/// driver, no device, no virtual driver library).
Result<Machine*> machine();

/// Makes `device` current in the calling thread for its lifetime.
class ScopedDevice {
 public:
  ScopedDevice(Machine& machine, int device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;

 private:
  Machine& machine_;
  int previous_ = -1;
};

}  // namespace niccolite::gpu
