// Memory of a device that Python owns, from ncclMemAlloc. On virtual GPUs it is the host's, too,
// and shows itself by the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>

namespace niccolite::python {

class DeviceMemory {
 public:
  /// NCCLError: the device has no such room.
  DeviceMemory(size_t bytes, int device);
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() { free(); }

  void* data() const { return is_closed_ ? nullptr : data_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }
  /// Gives the memory back, as soon as no array over it and no call uses it.
  void close();
  /// Not given back before as many end_use().
  void begin_use() { ++users_; }
  void end_use();

 private:
  void free() noexcept;

  void* data_ = nullptr;
  size_t bytes_;
  int device_;
  std::atomic<int> users_{0};  // interpreters without a GIL share objects between threads
  bool is_closed_ = false;
};

void bind_memory(nanobind::module_& module);

}  // namespace niccolite::python
