// Memory of a device that Python owns, from ncclMemAlloc. On virtual GPUs it is the host's, too,
// and shows itself by the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace niccolite::python {

class DeviceMemory {
 public:
  /// NCCLError: the device has no such room.
  DeviceMemory(size_t bytes, int device);
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() { free(); }

  /// Null once closed.
  void* data() const { return is_closed() ? nullptr : data_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }
  /// Gives the memory back, as soon as no array over it and no call uses it.
  void close();
  /// The memory, which is not given back before end_use(); null once closed: then there is no use
  /// to end.
  void* begin_use();
  void end_use();

 private:
  bool is_closed() const { return (state_.load(std::memory_order_acquire) & kClosed) != 0; }
  void free() noexcept;

  // Interpreters without a GIL share objects between threads. The thread that sets state_ to
  // kClosed without a user, or the last user, frees the memory. acq_rel, so that the users'
  // accesses happen before.
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  std::atomic<uint64_t> state_{0};  // users, and kClosed
  std::atomic<void*> data_{nullptr};
  size_t bytes_;
  int device_;
};

void bind_memory(nanobind::module_& module);

}  // namespace niccolite::python
