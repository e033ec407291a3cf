// CudaMachine: Machine by the CUDA driver. Uses the devices' primary contexts, as the CUDA runtime
// does, so that streams and pointers are the caller's own; retained on first use, for ever.
//
//   device.cc   devices and contexts      memory.cc   memory      mappings.cc   memory mapped again
//   peer_access.cc   access of devices to each other's memory
//   pools.cc    memory pools that processes share
//   stream.cc   streams and events        graph.cc    capture and graphs
//   host_memory.cc   page-locked memory of the host
//   adapters.cc      memory that network adapters read and write
//   multicast.cc     teams of NVLink SHARP
//
// It never waits for the caller's work unless asked to (nothing runs on the legacy stream). Thread
// safety: as Machine.
#pragma once

#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/driver.h"
#include "gpu/cuda/multicast.h"
#include "gpu/machine.h"

namespace niccolite::gpu::cuda {

/// Makes a context current in the calling thread for its lifetime.
class ScopedContext {
 public:
  ScopedContext() = default;
  static Result<ScopedContext> enter(const Driver& driver, CuContext context);
  ScopedContext(ScopedContext&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), previous_(other.previous_) {}
  ScopedContext& operator=(ScopedContext&&) = delete;
  ~ScopedContext();

 private:
  const Driver* driver_ = nullptr;  // null: the context was current already
  CuContext previous_ = nullptr;
};

/// For calls that a capture forbids the thread although they have nothing to do with it, such as
/// allocating: lifts the ban for its lifetime.
class ScopedRelaxedCapture {
 public:
  explicit ScopedRelaxedCapture(const Driver& driver);
  ~ScopedRelaxedCapture();
  ScopedRelaxedCapture(const ScopedRelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CuCaptureMode mode_ = CuCaptureMode::Relaxed;
};

class CudaMachine final : public Machine {
 public:
  static Result<CudaMachine*> create();

  const Driver& driver() const { return driver_; }
  Multicast& multicast() override { return multicast_; }
  /// The primary context of `device`.
  Result<CuContext> context(int device);
  Result<ScopedContext> enter(int device);
  /// The memory around `pointer`, if it is of `device`, and all devices can use it that
  /// open_buffers() has let in: an allocation of cudaMalloc or of a memory pool, or a mapping of
  /// virtual memory management. Opens the latter two to those devices if need be. Asked at every
  /// launch: a fraction of a microsecond.
  std::optional<std::span<const std::byte>> open_around(int device, const void* pointer);

  Kind kind() const override { return Kind::Cuda; }
  int device_count() const override { return static_cast<int>(devices_.size()); }
  Result<DeviceInfo> device_info(int device) override;
  int driver_version() const override { return driver_.version; }
  Result<int> current_device() override;
  Status set_current_device(int device) override;

  Result<DeviceMemory> device_memory(int device) override;
  Result<Memory> allocate(int device, size_t bytes, bool shareable) override;
  Result<Memory> allocate_as_user(int device, size_t bytes) override;
  Result<Fd> export_memory(const Memory& memory) override;
  Result<Memory> import_memory(int device, Fd fd, size_t bytes) override;
  Result<AllocationName> name_allocation(const void* pointer) override;
  Result<Memory> open_allocation(int device, const AllocationName& name, size_t bytes,
                                 const PoolImport* pool) override;
  const void* pool_of(const void* pointer) override;
  Result<Fd> export_pool(const void* pointer) override;
  Result<PoolImport> import_pool(int device, Fd fd) override;
  Status suspend_memory(const Memory& memory) override;
  Status resume_memory(const Memory& memory) override;
  Status resume_import(const Memory& memory, Fd fd) override;
  bool can_access_peer(int device, int peer) override;
  bool doubts_peer_access() override { return true; }
  bool keeps_lines_whole(int device, int peer) override;
  bool shares_atomics(int device, int peer) override;
  bool open_buffers(int device, int peer) override;
  bool is_open(int device, const void* pointer, size_t bytes) override;
  Status grant_access(const Memory& memory, int device) override;
  Result<Memory> allocate_host(size_t bytes) override;
  Result<Memory> allocate_shared_host(size_t bytes) override;
  Result<Memory> import_host(Fd fd, size_t bytes) override;
  Result<PointerInfo> pointer_info(const void* pointer) override;
  Status upload(int device, void* target, const void* source, size_t bytes) override;
  Status download(int device, void* target, const void* source, size_t bytes) override;

  Result<size_t> mapping_granularity(int device) override;
  Result<Backing> backing_of(const void* pointer) override;
  /// Returns the one mapping around a pointer into memory that was mapped by virtual memory
  /// management. Several mappings may lie side by side in one reservation, which pointer_info()
  /// reports as one.
  Result<std::span<std::byte>> mapping_around(const void* pointer);
  bool is_mapped(const Backing& memory, const void* pointer) override;
  Result<Fd> export_physical(const Physical& memory) override;
  Result<Backing> import_physical(int device, Fd fd, size_t bytes) override;
  Result<AddressRange> reserve_addresses(int device, size_t bytes, size_t alignment) override;
  Status map_physical(const AddressRange& range, size_t offset, std::span<const Backing> pieces,
                      const std::vector<int>& devices) override;

  Result<DmaBuffer> export_range(const void* memory, size_t bytes) override;
  Result<NicWrites> nic_writes(int device) override;
  Status flush_nic_writes(int device) override;

  Result<Stream> create_stream(int device) override;
  Status synchronize_stream(int device, StreamHandle stream) override;
  Result<bool> query_stream(int device, StreamHandle stream) override;
  Result<uint64_t> stream_id(int device, StreamHandle stream) override;
  Result<Capture> capture_of(int device, StreamHandle stream) override;
  Result<Event> create_event(int device, bool timing) override;
  Status record_event(const Event& event, int device, StreamHandle stream) override;
  Status wait_event(int device, StreamHandle stream, const Event& event) override;
  Status synchronize_event(const Event& event) override;
  Result<bool> await_event(const Event& event, Deadline deadline) override;
  Result<float> elapsed_milliseconds(const Event& start, const Event& stop) override;
  Status copy_async(void* target, const void* source, size_t bytes, int device,
                    StreamHandle stream) override;
  Status set_async(void* target, uint8_t value, size_t bytes, int device,
                   StreamHandle stream) override;
  Status call_host(int device, StreamHandle stream, void (*function)(void*), void* data) override;
  Result<std::shared_ptr<Backlog>> backlog(int device) override;

  Status begin_capture(int device, StreamHandle stream) override;
  Result<Graph> end_capture(int device, StreamHandle stream) override;
  Status launch_graph(const Graph& graph, int device, StreamHandle stream) override;
  Status keep_in_graph(int device, StreamHandle stream, void* object,
                       void (*release)(void*)) override;
  Result<CapturePoint> capture_point(int device, StreamHandle stream) override;
  Status capture_after(int device, StreamHandle stream, const CapturePoint& point) override;
  Status wait_event_at_launch(int device, StreamHandle stream, const Event& event) override;
  Result<GraphNode> record_event_at_launch(int device, const CapturePoint& point,
                                           const Event& event) override;
  Status move_record(int device, GraphNode record, const CapturePoint& from,
                     const CapturePoint& to) override;

 protected:
  Status release_memory(void* handle) override;
  Status release_stream(void* handle) override;
  Status release_event(void* handle) override;
  Status release_graph(void* handle) override;
  Status release_physical(void* handle) override;
  Status release_pool_import(void* handle) override;
  Status release_reservation(void* handle) override;

 private:
  struct Allocation;
  struct Device {
    CuDevice device = 0;
    bool has_virtual_memory = false;
    bool can_be_rdma_target = false;
    std::mutex mutex;
    std::atomic<CuContext> context{nullptr};  // set under the mutex; null before first use
    std::atomic<uint64_t> guests{0};          // devices that open_buffers() has let in, a bit each
    CuStream internal_stream = nullptr;       // guarded by mutex until set; for zeroing memory
  };

  friend class CudaMulticast;  // a part of it, in a file of its own
  explicit CudaMachine(const Driver& driver) : driver_(driver), multicast_(*this) {}
  Status find_devices();
  Result<Device*> device(int ordinal);
  Result<int> attribute(int ordinal, int number);
  static constexpr int kMostGuests = 64;
  Result<bool> has_atomics(int ordinal, int peer);
  void note_closed(const char* what, int device, CuResult result);
  bool open_mapping(int device, std::span<std::byte> mapping, uint64_t guests);
  bool open_pool(int device, CuMemoryPool pool, uint64_t guests);
  Status copy_now(int ordinal, void* target, const void* source, size_t bytes);
  Result<CuStream> internal_stream(int device);
  Status zero(int device, CuPointer address, size_t bytes);
  Result<ScopedContext> enter_any();
  Status check_drain(CuResult result, const char* call, int device);
  static CuAllocationProperties allocation_properties(const Device& owner, bool shareable);
  Result<size_t> granularity_of(int device, const CuAllocationProperties& properties);
  Result<Fd> export_allocation(CuAllocation allocation);
  Result<CuAllocation> import_allocation(const Fd& fd);
  Status allow_access(CuPointer address, size_t bytes, const std::vector<int>& devices);
  Result<Memory> map(int device, CuAllocation allocation, size_t bytes,
                     const std::vector<int>& devices, bool shareable);
  /// For kernels of all devices. `file` is kept, for export_memory(), if there is one.
  Result<Memory> lock_pages(Fd file, Mapping mapping);
  Status release_host(const Allocation& allocation);
  Status map_again(Allocation& memory, CuAllocation allocation);
  static Allocation* allocation_of(const Memory& memory);

  const Driver& driver_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> has_noted_closed_{false};
  CudaMulticast multicast_;
};

/// Does `bytes` at `pointer` lie in pieces of memory that are found one after the other?
/// `around(at)`: the piece that `at` lies in; empty: none. With 0 bytes the first piece counts
/// alone.
template <typename Around>
bool lies_in_pieces(const void* pointer, uint64_t bytes, Around&& around) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* const end = at + bytes;
  do {
    const std::span<const std::byte> piece = around(at);
    if (piece.empty()) return false;
    at = piece.data() + piece.size();
  } while (at < end);
  return true;
}

inline CuPointer as_pointer(const void* address) { return std::bit_cast<uintptr_t>(address); }
inline void* as_address(CuPointer pointer) { return std::bit_cast<void*>(uintptr_t{pointer}); }
inline CuStream as_stream(StreamHandle stream) { return static_cast<CuStream>(stream); }
inline CuEvent as_event(const Event& event) { return static_cast<CuEvent>(event.handle()); }

}  // namespace niccolite::gpu::cuda
