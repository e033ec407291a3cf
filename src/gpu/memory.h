// Allocations: memory of devices and page-locked memory of the host, and the allocations that
// pointers belong to. Thread safety: any thread, as all of
// Machine (machine.h).
//
// Memory that several processes use: sharing.h. Memory at addresses that the caller chooses:
// mappings.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace niccolite::gpu {

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
  // Names the allocation: never used again in this process, though its address may be. 0 where the
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

class Allocations;

/// Device memory, an imported mapping of another process's device memory, or page-locked host
/// memory.
class Memory {
 public:
  Memory() = default;
  Memory(Allocations* from, void* handle, void* data, size_t bytes, int device)
      : from_(from), handle_(handle), data_(data), bytes_(bytes), device_(device) {}
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
  Allocations* from_ = nullptr;
  void* handle_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = -1;
};

class Allocations {
 public:
  /// The memory that could be allocated now. Too slow for every launch.
  virtual Result<DeviceMemory> device_memory(int device) = 0;
  /// `bytes` > 0 of zeroed device memory. Shareable memory can be exported to other processes.
  /// Waits for no stream of the user's (a kernel there may be waiting for this call's outcome).
  virtual Result<Memory> allocate(int device, size_t bytes, bool shareable) = 0;
  /// Memory as a user's cudaMalloc makes it, for benchmarks and tests that stand for users. May
  /// wait for all streams of the device, also when it is given back.
  virtual Result<Memory> allocate_as_user(int device, size_t bytes) = 0;
  /// `bytes` > 0 of zeroed page-locked host memory, accessible at the same address by the host and
  /// by every device.
  virtual Result<Memory> allocate_host(size_t bytes) = 0;
  virtual Result<PointerInfo> pointer_info(const void* pointer) = 0;
  /// Copies host memory to device memory, at once: waits for nobody's work but its own.
  virtual Status upload(int device, void* target, const void* source, size_t bytes) = 0;
  /// The other way. What kernels store meanwhile may come or not, each aligned word as a whole.
  virtual Status download(int device, void* target, const void* source, size_t bytes) = 0;

 protected:
  friend class Memory;
  ~Allocations() = default;
  virtual Status release_memory(void* handle) = 0;
};

}  // namespace niccolite::gpu
