#include "gpu/virtual/driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/forks.h"
#include "base/parameters.h"
#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/mappings.h"
#include "gpu/virtual/multicast.h"
#include "gpu/virtual/path_fault.h"
#include "gpu/virtual/runtime.h"
#include "gpu/virtual/scheduler.h"
#include "gpu/virtual/team.h"

namespace niccolite::gpu::virtual_ {
namespace {

// The name of a file that stands for a memory pool; behind it the device's number.
constexpr std::string_view kPoolFile = "virtual-gpu-pool-";

bool lacks_descriptors() {
  const Fd any(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return !any.valid() && (errno == EMFILE || errno == ENFILE);
}

/// Is "a-b" in `pairs`, in either order? "0-1,2-3".
bool is_said_to_tear(const std::string& pairs, int a, int b) {
  if (pairs.empty()) return false;
  const std::string all = "," + pairs + ",";
  const auto has = [&](int first, int second) {
    return all.find(fmt::format(",{}-{},", first, second)) != std::string::npos;
  };
  return has(a, b) || has(b, a);
}

class Driver final : public VirtualMachine, public DriverCalls {
  class Backlog final : public gpu::Backlog {
   public:
    Backlog(int device, std::function<Error(Deadline)> await)
        : device_(device), await_(std::move(await)) {}
    Result<bool> await(Deadline deadline) override {
      const Error error = await_(deadline);
      if (error == Error::NotReady) return false;
      if (error != Error::None) return refused(error, "wait for {} of", "the work", device_);
      return true;
    }

   private:
    const int device_;
    const std::function<Error(Deadline)> await_;
  };

 public:
  explicit Driver(Runtime& runtime)
      : runtime_(runtime), multicast_(runtime.memory(), runtime.visible()) {}

  Kind kind() const override { return Kind::Virtual; }
  Multicast& multicast() override { return multicast_; }
  std::shared_ptr<const MulticastMemory> multicast_memory(const void* address,
                                                          size_t* offset) override {
    const MulticastPlace place = runtime_.memory().multicast_at(address);
    *offset = place.offset;
    return place.object == nullptr ? nullptr : place.object->memory();
  }
  Result<DmaBuffer> export_range(const void* memory, size_t bytes) override {
    MemoryProperties found;
    RemoteName name;
    if (!runtime_.memory().find(memory, &found)) found = {};
    const size_t inside =
        reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(found.base);
    if (inside > found.bytes || bytes > found.bytes - inside ||
        runtime_.memory().name_for_others(memory, &name) != Error::None)
      return Status::cuda_error("{} bytes at {} are no memory of a virtual GPU", bytes, memory);
    Fd copy(fcntl(name.fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return Status::from_errno(errno, "fcntl(F_DUPFD_CLOEXEC)");
    return DmaBuffer{std::move(copy), name.offset + inside};
  }
  // Virtual NICs write the memory by cores of this machine.
  Result<NicWrites> nic_writes(int device) override {
    TRY(check_device("ask for writes of network adapters to", device));
    return NicWrites{.are_ordered = true, .can_be_flushed = true};
  }
  Status flush_nic_writes(int device) override {
    return check_device("flush writes of network adapters to", device);
  }
  int device_count() const override { return runtime_.device_count(); }
  Result<DeviceInfo> device_info(int device) override { return runtime_.describe(device); }
  int driver_version() const override { return kVersion; }
  Result<int> current_device() override {
    if (forks::is_orphan()) return orphaned("ask for the current device");
    return Runtime::current_device();
  }
  Status set_current_device(int device) override {
    TRY(check_device("set the current device", device));
    Runtime::set_current_device(device);
    return {};
  }

  Result<Memory> allocate(int device, size_t bytes, bool shareable) override {
    TRY(check_device("allocate memory", device));
    MemoryProperties made;
    const Error error =
        runtime_.memory().allocate(device, bytes, PointerKind::Device, shareable, &made);
    if (error == Error::MemoryAllocation && !lacks_descriptors()) {
      size_t free = 0;
      size_t total = 0;
      runtime_.memory().usage(device, &free, &total);
      return Status::cuda_error(
          "cannot allocate {} bytes on virtual GPU {}: {} ({}); {} of its {} can be had, which are "
          "memory of this machine",
          bytes, device, text_of(error), name_of(error), free, total);
    }
    if (error != Error::None) return refused(error, "allocate {} bytes on", bytes, device);
    return owner(made);
  }

  Result<DeviceMemory> device_memory(int device) override {
    TRY(check_device("measure memory", device));
    DeviceMemory memory;
    runtime_.memory().usage(device, &memory.free_bytes, &memory.total_bytes);
    return memory;
  }

  Result<Memory> allocate_as_user(int device, size_t bytes) override {
    return allocate(device, bytes, /*shareable=*/false);
  }

  Result<Fd> export_memory(const Memory& memory) override {
    Fd fd;
    const Error error = runtime_.memory().export_memory(memory.handle(), &fd);
    if (error == Error::InvalidValue) {
      return Status::invalid_usage(
          "cannot export memory at {} of virtual GPU {}: it is not a shareable allocation of this "
          "process",
          memory.data(), memory.device());
    }
    if (error != Error::None)
      return refused(error, "export memory at {} of", memory.data(), memory.device());
    return fd;
  }

  Result<Memory> import_memory(int device, Fd fd, size_t bytes) override {
    TRY(check_device("import memory", device));
    MemoryProperties made;
    const Error error = runtime_.memory().import(device, std::move(fd), bytes, 0, &made,
                                                 path_fault() == PathFault::Lost);
    if (error != Error::None)
      return refused(error, "import {} bytes of another process for", bytes, device);
    return owner(made);
  }

  Result<AllocationName> name_allocation(const void* pointer) override {
    RemoteName name;
    const Error error = runtime_.memory().name_for_others(pointer, &name);
    if (error != Error::None) return refused(error, "name memory at {} of", pointer);
    AllocationName bytes{};
    static_assert(sizeof name <= sizeof bytes);
    std::memcpy(bytes.data(), &name, sizeof name);
    return bytes;
  }
  Result<Memory> open_allocation(int device, const AllocationName& name, size_t bytes,
                                 const PoolImport* /*pool*/) override {
    TRY(check_device("open memory", device));
    RemoteName remote;
    std::memcpy(&remote, name.data(), sizeof remote);
    MemoryProperties made;
    const Error error = runtime_.memory().import_named(device, remote, &made);
    if (error != Error::None)
      return refused(error, "open {} bytes of another process for", bytes, device);
    Memory memory = owner(made);
    if (memory.bytes() != bytes)
      return Status::cuda_error("{} bytes of another process are named, {} were expected",
                                memory.bytes(), bytes);
    return memory;
  }

  const void* pool_of(const void* pointer) override {
    return runtime_.memory().pool_of(pointer).get();
  }
  Result<Fd> export_pool(const void* pointer) override {
    const std::shared_ptr<const MemoryPool> pool = runtime_.memory().pool_of(pointer);
    Fd file;
    const Error error = pool == nullptr ? Error::InvalidValue : export_pool(*pool, &file);
    if (error != Error::None) return refused(error, "export the memory pool at {} of", pointer);
    return file;
  }
  Result<PoolImport> import_pool(int device, Fd fd) override {
    TRY(check_device("import a memory pool", device));
    std::shared_ptr<const MemoryPool> pool;
    const Error error = import_pool(fd.get(), &pool);
    if (error != Error::None) return refused(error, "import memory pool {} for", fd.get(), device);
    return PoolImport(this, new std::shared_ptr<const MemoryPool>(std::move(pool)));
  }

  Status suspend_memory(const Memory& memory) override {
    return check_shared(runtime_.memory().suspend(memory.handle()), "suspend", memory);
  }
  Status resume_memory(const Memory& memory) override {
    return check_shared(runtime_.memory().resume(memory.handle()), "resume", memory);
  }
  // The exporter's file has stayed the same.
  Status resume_import(const Memory& memory, Fd /*fd*/) override { return resume_memory(memory); }

  bool open_buffers(int device, int peer) override { return shares_atomics(device, peer); }
  bool is_open(int /*device*/, const void* /*pointer*/, size_t /*bytes*/) override { return true; }
  // All of it is one memory; but tests need links that are not like it.
  bool keeps_lines_whole(int device, int peer) override {
    return !is_said_to_tear(parameters::virtual_pcie(), device, peer);
  }
  bool shares_atomics(int device, int peer) override { return keeps_lines_whole(device, peer); }
  bool doubts_peer_access() override { return path_fault() != PathFault::None; }
  bool can_access_peer(int device, int peer) override {
    return device != peer && runtime_.is_device(device) && runtime_.is_device(peer);
  }

  Status grant_access(const Memory& memory, int device) override {
    TRY(check_device("grant access", device));
    MemoryProperties properties;
    // All virtual GPUs see all memory of the process, so this only refuses the calls that CUDA
    // would refuse.
    if (runtime_.memory().find(memory.data(), &properties) &&
        properties.origin == MemoryOrigin::Shareable)
      return {};
    return refused(Error::InvalidValue, "grant access to memory at {} to", memory.data(), device);
  }

  Result<Memory> allocate_host(size_t bytes) override {
    MemoryProperties made;
    const Error error = runtime_.memory().allocate(-1, bytes, PointerKind::Host, false, &made);
    if (error != Error::None)
      return Status::cuda_error("virtual GPUs cannot allocate {} bytes of host memory: {} ({})",
                                bytes, text_of(error), name_of(error));
    return owner(made);
  }

  Result<Memory> allocate_shared_host(size_t bytes) override {
    MemoryProperties made;
    const Error error = runtime_.memory().allocate(-1, bytes, PointerKind::Host, true, &made);
    if (error != Error::None)
      return Status::cuda_error(
          "virtual GPUs cannot allocate {} bytes of shared host memory: {} ({})", bytes,
          text_of(error), name_of(error));
    return owner(made);
  }
  Result<Memory> import_host(Fd fd, size_t bytes) override {
    MemoryProperties made;
    const Error error = runtime_.memory().import(-1, std::move(fd), bytes, 0, &made);
    if (error != Error::None)
      return Status::cuda_error(
          "virtual GPUs cannot import {} bytes of another process' host memory: {} ({})", bytes,
          text_of(error), name_of(error));
    return owner(made);
  }

  Result<PointerInfo> pointer_info(const void* pointer) override {
    MemoryProperties found;
    if (!runtime_.memory().find(pointer, &found)) return PointerInfo{};
    return PointerInfo{found.kind,  found.device, found.base,
                       found.bytes, found.id,     found.origin == MemoryOrigin::Mapped};
  }

  Status upload(int device, void* target, const void* source, size_t bytes) override {
    TRY(check_device("copy to memory", device));
    std::memcpy(target, source, bytes);
    return {};
  }

  Status download(int device, void* target, const void* source, size_t bytes) override {
    TRY(check_device("copy from memory", device));
    std::memcpy(target, source, bytes);
    return {};
  }

  Result<size_t> mapping_granularity(int device) override {
    TRY(check_device("map memory again", device));
    return kMappingGranularity;
  }
  Result<Backing> backing_of(const void* pointer) override {
    auto physical = std::make_unique<PhysicalMemory>();
    MemoryProperties whole;
    const Error error = runtime_.memory().share(pointer, &physical->fd, &whole);
    if (error == Error::InvalidValue)
      return Status::cuda_error(
          "memory at {} of virtual GPUs cannot be mapped again: it is not shareable (use "
          "ncclMemAlloc)",
          pointer);
    if (error != Error::None) return refused(error, "share memory at {} of", pointer);
    physical->bytes = whole.bytes;
    return Backing{Physical(this, physical.release()), whole.base, whole.bytes, whole.id};
  }
  bool is_mapped(const Backing& memory, const void* pointer) override {
    MemoryProperties found;
    return runtime_.memory().find(pointer, &found) && found.id == memory.id &&
           found.base == memory.base;
  }
  Result<Fd> export_physical(const Physical& memory) override {
    return physical_of(memory)->fd.duplicate();
  }
  Result<Backing> import_physical(int device, Fd fd, size_t bytes) override {
    TRY(check_device("import memory", device));
    std::unique_ptr<PhysicalMemory> physical;
    const Error error = PhysicalMemory::import(std::move(fd), bytes, &physical);
    if (error != Error::None)
      return refused(error, "import {} bytes of another process for", bytes, device);
    return Backing{Physical(this, physical.release()), nullptr, bytes, 0};
  }
  Result<AddressRange> reserve_addresses(int device, size_t bytes, size_t alignment) override {
    TRY(check_device("reserve addresses", device));
    std::unique_ptr<AddressReservation> made;
    const Error error = AddressReservation::create(runtime_.memory(), bytes, alignment, &made);
    if (error != Error::None)
      return refused(error, "reserve {} bytes of addresses for", bytes, device);
    std::byte* const base = made->base();
    return AddressRange{Reservation(this, made.release()), base, bytes};
  }
  Status map_physical(const AddressRange& range, size_t offset, std::span<const Backing> pieces,
                      const std::vector<int>& devices) override {
    for (const Backing& piece : pieces) {
      const Error error = reservation_of(range.reservation)
                              ->map_memory(offset, *physical_of(piece.memory), devices.front());
      if (error != Error::None)
        return refused(error, "map {} bytes again for", piece.bytes, devices.front());
      offset += piece.bytes;
    }
    return {};
  }

  Result<gpu::Stream> create_stream(int device) override {
    StreamHandle handle = nullptr;
    const Error error = runtime_.create_stream(device, false, 0, &handle);
    if (error != Error::None) return refused(error, "create {} on", "a stream", device);
    return gpu::Stream(this, handle);
  }
  Status synchronize_stream(int device, StreamHandle stream) override {
    return check(runtime_.synchronize_stream(device, stream), "wait for", stream, device);
  }
  Result<bool> query_stream(int device, StreamHandle stream) override {
    const Error error = runtime_.query_stream(device, stream);
    if (error == Error::NotReady) return false;
    TRY(check(error, "query", stream, device));
    return true;
  }
  Result<uint64_t> stream_id(int device, StreamHandle stream) override {
    uint64_t id = 0;
    TRY(check(runtime_.stream_id(device, stream, &id), "ask for the identity of", stream, device));
    return id;
  }
  Result<gpu::Capture> capture_of(int device, StreamHandle stream) override {
    CaptureInfo info;
    TRY(check(runtime_.capture_info(device, stream, &info), "ask for the capture of", stream,
              device));
    return gpu::Capture{info.state, info.id};
  }

  Result<gpu::Event> create_event(int device, bool timing) override {
    TRY(check_device("create an event", device));
    void* handle = nullptr;
    TRY(check_event(runtime_.create_event(timing, &handle), "create", handle));
    return gpu::Event(this, handle);
  }
  Status record_event(const gpu::Event& event, int device, StreamHandle stream) override {
    return check(runtime_.record_event(event.handle(), device, stream), "record an event in",
                 stream, device);
  }
  Status wait_event(int device, StreamHandle stream, const gpu::Event& event) override {
    return check(runtime_.wait_event(device, stream, event.handle()),
                 "queue a wait for an event to", stream, device);
  }
  Status synchronize_event(const gpu::Event& event) override {
    return check_event(runtime_.synchronize_event(event.handle()), "wait for", event.handle());
  }
  Result<bool> await_event(const gpu::Event& event, Deadline deadline) override {
    const Error error = runtime_.await_event(event.handle(), deadline);
    if (error == Error::NotReady) return false;
    TRY(check_event(error, "wait for", event.handle()));
    return true;
  }
  Result<float> elapsed_milliseconds(const gpu::Event& start, const gpu::Event& stop) override {
    float milliseconds = 0;
    TRY(check_event(runtime_.elapsed_milliseconds(start.handle(), stop.handle(), &milliseconds),
                    "take the time until", stop.handle()));
    return milliseconds;
  }

  Status copy_async(void* target, const void* source, size_t bytes, int device,
                    StreamHandle stream) override {
    if (path_fault() != PathFault::None &&
        (is_of_peer(target, device) || is_of_peer(source, device)))
      return copy_faultily(target, source, bytes, device, stream);
    const Copy copy{static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes};
    return check(runtime_.copy(device, stream, copy), "queue a copy to", stream, device);
  }
  Status set_async(void* target, uint8_t value, size_t bytes, int device,
                   StreamHandle stream) override {
    const Set set{static_cast<std::byte*>(target), value, bytes};
    return check(runtime_.set(device, stream, set), "queue a fill to", stream, device);
  }
  Status call_host(int device, StreamHandle stream, void (*function)(void*), void* data) override {
    return check(runtime_.submit(device, stream, HostCall{nullptr, function, data}),
                 "queue a host call to", stream, device);
  }
  Status launch(int device, StreamHandle stream, std::shared_ptr<Kernel> kernel) override {
    return check(runtime_.submit(device, stream, KernelLaunch{std::move(kernel)}),
                 "launch a kernel in", stream, device);
  }

  EventWorkers* event_workers() override { return this; }
  Status attach(EventSource& source) override { return scheduler().sources().attach(source); }
  void detach(EventSource& source) override { scheduler().sources().detach(source); }
  void wake() override { scheduler().sources().wake(); }

  DriverCalls& driver_calls() override { return *this; }
  VirtualMemory& virtual_memory() override { return runtime_.address_space(); }
  bool is_runtime_used() override { return Runtime::is_used(); }
  bool is_in_runtime() override { return Runtime::has_context(); }
  void leave_runtime() override { Runtime::has_context() = false; }
  Error fill(int device, StreamHandle stream, void* target, uint32_t value, size_t element_bytes,
             size_t count, bool waits) override {
    size_t width = 0;
    if (__builtin_mul_overflow(count, element_bytes, &width)) return Error::InvalidValue;
    const Set set{.target = static_cast<std::byte*>(target),
                  .value = value,
                  .width = width,
                  .element_bytes = element_bytes};
    return runtime_.set(device, stream, set, waits);
  }
  Error allocate_in_order(int stream_device, StreamHandle stream,
                          std::shared_ptr<const MemoryPool> pool, size_t bytes,
                          void** out) override {
    CaptureInfo capture;
    TRY_VIRTUAL(runtime_.capture_info(stream_device, stream, &capture));
    if (capture.state != CaptureState::None) return Error::NotSupported;
    MemoryProperties made;
    TRY_VIRTUAL(runtime_.memory().allocate_from(std::move(pool), bytes, &made));
    *out = made.base;
    return Error::None;
  }
  Error free_in_order(int stream_device, StreamHandle stream, void* base) override {
    CaptureInfo capture;
    TRY_VIRTUAL(runtime_.capture_info(stream_device, stream, &capture));
    if (capture.state != CaptureState::None) return Error::NotSupported;
    return runtime_.submit(stream_device, stream,
                           HostCall{[this, base] { (void)runtime_.memory().release(base); }});
  }
  Error export_pool(const MemoryPool& pool, Fd* out) override {
    if (!pool.is_exportable) return Error::InvalidValue;
    Result<Fd> file = Fd::memfd(fmt::format("{}{}", kPoolFile, pool.device).c_str(), 0);
    if (!file.is_ok()) return Error::OperatingSystem;
    *out = std::move(file).take();
    return Error::None;
  }
  Error import_pool(int fd, std::shared_ptr<const MemoryPool>* out) override {
    const std::string link = fmt::format("/proc/self/fd/{}", fd);
    std::array<char, 64> target{};
    const ssize_t length = readlink(link.c_str(), target.data(), target.size());
    const std::string prefix = fmt::format("/memfd:{}", kPoolFile);
    std::string_view name(target.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
    if (!name.starts_with(prefix)) return Error::InvalidValue;
    name.remove_prefix(prefix.size());
    int device = -1;
    std::from_chars(name.data(), name.data() + name.size(), device);
    if (device < 0) return Error::InvalidValue;
    if (!runtime_.is_device(device)) return Error::InvalidDevice;
    *out = std::make_shared<const MemoryPool>(MemoryPool{.device = device});
    return Error::None;
  }
  Error wait_value(int device, StreamHandle stream, const void* address, uint64_t value,
                   size_t bytes, Comparison comparison) override {
    return runtime_.use_word(device, stream, WaitValue{address, value, bytes, comparison});
  }
  Error write_value(int device, StreamHandle stream, void* address, uint64_t value,
                    size_t bytes) override {
    return runtime_.use_word(device, stream, WriteValue{address, value, bytes});
  }

  Result<std::shared_ptr<gpu::Backlog>> backlog(int device) override {
    TRY(check_device("wait for the work of a device", device));
    std::function<Error(Deadline)> await;
    const Error error = runtime_.backlog(device, &await);
    if (error != Error::None) return refused(error, "wait for {} of", "the work", device);
    return std::shared_ptr<gpu::Backlog>(std::make_shared<Backlog>(device, std::move(await)));
  }

  Status begin_capture(int device, StreamHandle stream) override {
    return check(runtime_.begin_capture(device, stream, CaptureMode::ThreadLocal), "capture",
                 stream, device);
  }
  Result<gpu::Graph> end_capture(int device, StreamHandle stream) override {
    void* graph = nullptr;
    TRY(check(runtime_.end_capture(device, stream, &graph), "end the capture of", stream, device));
    void* executable = nullptr;
    const Error error = runtime_.instantiate(graph, &executable);
    // The executable has its own copy of all that the graph holds.
    (void)runtime_.destroy_graph(graph);
    TRY(check(error, "instantiate the graph captured from", stream, device));
    return gpu::Graph(this, executable);
  }
  Status launch_graph(const gpu::Graph& graph, int device, StreamHandle stream) override {
    return check(runtime_.launch(graph.handle(), device, stream), "launch a graph in", stream,
                 device);
  }
  Status keep_in_graph(int device, StreamHandle stream, void* object,
                       void (*release)(void*)) override {
    CaptureInfo info;
    TRY(check(runtime_.capture_info(device, stream, &info), "keep an object for the graph of",
              stream, device));
    // Asked first, because the object must not be released when this call fails.
    if (info.state != CaptureState::Active)
      return check(Error::IllegalState, "keep an object for the graph of", stream, device);
    return check(
        runtime_.keep_in_capture(device, stream, std::make_shared<UserObject>(object, release)),
        "keep an object for the graph of", stream, device);
  }

  Result<CapturePoint> capture_point(int device, StreamHandle stream) override {
    CapturePoint point;
    std::vector<NodeIndex> nodes;
    const Error error = runtime_.capture_point(device, stream, &point.graph, &nodes);
    if (error == Error::IllegalState) return not_capturing(stream);
    TRY(check(error, "find the place in its graph of", stream, device));
    for (NodeIndex node : nodes) point.nodes.push_back(as_handle(node));
    return point;
  }
  Status capture_after(int device, StreamHandle stream, const CapturePoint& point) override {
    const Error error = runtime_.capture_after(device, stream, point.graph, indices_of(point));
    if (error == Error::IllegalState) return not_capturing(stream);
    return check(error, "add dependencies to", stream, device);
  }
  Status wait_event_at_launch(int device, StreamHandle stream, const gpu::Event& event) override {
    const Error error = runtime_.wait_event(device, stream, event.handle(), /*as_node=*/true);
    if (error == Error::IllegalState) return not_capturing(stream);
    return check(error, "add a wait for an event to the graph of", stream, device);
  }
  Result<GraphNode> record_event_at_launch(int device, const CapturePoint& point,
                                           const gpu::Event& event) override {
    NodeIndex node = 0;
    const Error error =
        runtime_.add_record_node(point.graph, indices_of(point), event.handle(), &node);
    if (error != Error::None)
      return refused(error, "record an event in graph {} of", point.graph, device);
    return as_handle(node);
  }
  Status move_record(int device, GraphNode record, const CapturePoint& from,
                     const CapturePoint& to) override {
    const Error error =
        runtime_.move_record_node(to.graph, index_of(record), indices_of(from), indices_of(to));
    if (error == Error::None) return {};
    return refused(error, "move the record of an event in graph {} of", to.graph, device);
  }

 protected:
  Status release_memory(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    const Error error = runtime_.memory().release(handle);
    if (error == Error::None) return {};
    return Status::cuda_error("virtual GPUs cannot free memory at {}: it is no live allocation",
                              handle);
  }
  Status release_stream(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    const Error error = runtime_.destroy_stream(handle);
    if (error == Error::None) return {};
    return refused(error, "destroy stream {} of", handle);
  }
  Status release_event(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    return check_event(runtime_.destroy_event(handle), "destroy", handle);
  }
  Status release_graph(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    const Error error = runtime_.destroy_executable(handle);
    if (error == Error::None) return {};
    return Status::cuda_error("virtual GPUs cannot destroy graph {}: {} ({})", handle,
                              text_of(error), name_of(error));
  }

  Status release_physical(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    delete static_cast<PhysicalMemory*>(handle);
    return {};
  }
  Status release_pool_import(void* handle) override {
    delete static_cast<std::shared_ptr<const MemoryPool>*>(handle);
    return {};
  }
  Status release_reservation(void* handle) override {
    if (forks::is_orphan()) return {};  // it is the parent's
    delete static_cast<AddressReservation*>(handle);
    return {};
  }

 private:
  static PhysicalMemory* physical_of(const Physical& memory) {
    return static_cast<PhysicalMemory*>(memory.handle());
  }
  static AddressReservation* reservation_of(const Reservation& reservation) {
    return static_cast<AddressReservation*>(reservation.handle());
  }
  // Handles of nodes: their indices, but none is null.
  static GraphNode as_handle(NodeIndex node) {
    return reinterpret_cast<GraphNode>(uintptr_t{node} + 1);
  }
  static NodeIndex index_of(GraphNode node) {
    return static_cast<NodeIndex>(reinterpret_cast<uintptr_t>(node) - 1);
  }
  static std::vector<NodeIndex> indices_of(const CapturePoint& point) {
    std::vector<NodeIndex> indices;
    for (GraphNode node : point.nodes) indices.push_back(index_of(node));
    return indices;
  }

  static Status not_capturing(StreamHandle stream) {
    return Status::invalid_usage("stream {} is not capturing", stream);
  }
  Memory owner(const MemoryProperties& made) {
    return Memory(this, made.base, made.base, made.bytes, made.device);
  }

  // Memory of virtual GPUs that is shared is files, for which CUDA has no error of its own.
  static std::string cause_of(Error error) {
    const bool may_be_short = error == Error::OperatingSystem || error == Error::MemoryAllocation;
    if (may_be_short && lacks_descriptors())
      return fmt::format("this process has no file descriptor left (limit: ulimit -n) ({})",
                         name_of(error));
    return fmt::format("{} ({})", text_of(error), name_of(error));
  }
  // "virtual GPU 3: cannot <what about object> this device: <cause>"
  template <typename Object>
  static Status refused(Error error, const char* what, const Object& object, int device) {
    return Status::cuda_error("cannot {} virtual GPU {}: {}",
                              fmt::format(fmt::runtime(what), object), device, cause_of(error));
  }
  // Makes this message for an object of no known device: "cannot <what about object> virtual GPUs:
  // <cause>"
  template <typename Object>
  static Status refused(Error error, const char* what, const Object& object) {
    return Status::cuda_error("cannot {} virtual GPUs: {}", fmt::format(fmt::runtime(what), object),
                              cause_of(error));
  }
  static Status check(Error error, const char* what, StreamHandle stream, int device) {
    if (error == Error::None) return {};
    const char* hint = error == Error::InvalidResourceHandle
                           ? "; the stream or event was destroyed, or belongs to another device"
                           : "";
    return Status::cuda_error("cannot {} stream {} of virtual GPU {}: {} ({}){}", what, stream,
                              device, text_of(error), name_of(error), hint);
  }
  static Status check_event(Error error, const char* what, void* event) {
    if (error == Error::None) return {};
    return Status::cuda_error("cannot {} event {} of virtual GPUs: {} ({})", what, event,
                              text_of(error), name_of(error));
  }
  bool is_of_peer(const void* memory, int device) {
    MemoryProperties found;
    return runtime_.memory().find(memory, &found) && found.kind == PointerKind::Device &&
           (found.device != device || found.origin == MemoryOrigin::Imported);
  }
  // As a broken path between the two GPUs would.
  Status copy_faultily(void* target, const void* source, size_t bytes, int device,
                       StreamHandle stream) {
    const PathFault fault = path_fault();
    const bool is_store = is_of_peer(target, device);
    if (fault == PathFault::Lost && is_store) return {};
    if (fault == PathFault::Zeros && !is_store) return set_async(target, 0, bytes, device, stream);
    const auto copy = [=] {
      if (fault == PathFault::Late && is_store)
        std::this_thread::sleep_for(std::chrono::seconds(1));
      std::memcpy(target, source, bytes);
    };
    return check(runtime_.submit(device, stream, HostCall{.call = copy}), "queue a late copy to",
                 stream, device);
  }
  static Status check_shared(Error error, const char* what, const Memory& memory) {
    if (error == Error::None) return {};
    if (error == Error::InvalidValue)
      return Status::invalid_usage("only memory that can be shared can be suspended");
    return Status::cuda_error("virtual GPUs cannot {} {} bytes at {}: {} ({})", what,
                              memory.bytes(), memory.data(), text_of(error), name_of(error));
  }
  static Status orphaned(const char* what) {
    return Status::cuda_error("cannot {}: {} ({})", what, text_of(Error::InitializationError),
                              name_of(Error::InitializationError));
  }
  Status check_device(const char* what, int device) const {
    if (forks::is_orphan()) return orphaned(what);
    if (runtime_.is_device(device)) return {};
    return Status::cuda_error("cannot {}: there is no virtual GPU {}; this process has {}", what,
                              device, runtime_.visible().describe());
  }

  Runtime& runtime_;
  VirtualMulticast multicast_;
};

}  // namespace

VirtualMachine* open(int interface_version) {
  if (interface_version != kInterfaceVersion) return nullptr;
  // Never destroyed: callers keep the pointer for ever.
  static VirtualMachine* const machine = []() -> VirtualMachine* {
    Runtime* runtime = Runtime::instance();
    return runtime ? new Driver(*runtime) : nullptr;
  }();
  return machine;
}

}  // namespace niccolite::gpu::virtual_
