// Buffer: memory of a Python object, in the form that a communication call needs.
//
// NumPy arrays, nccl.core's own memory and objects that have Python's buffer protocol are read
// here; all others by nccl.core.buffer.resolve, which knows torch, CuPy, the CUDA Array Interface,
// DLPack and __array_interface__. A Buffer keeps its memory alive: it holds the object and the
// export of its memory, if there is one. The GIL must be held, except where noted.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

#include "nccl.h"

namespace niccolite::python {

class DeviceMemory;

class Buffer {
 public:
  Buffer() = default;
  /// `name` is the argument's, for errors. NcclInvalid: no memory, a type that cannot be
  /// communicated, elements that do not lie side by side, read-only where `written`.
  Buffer(const char* name, nanobind::handle object, bool written);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  size_t count() const { return count_; }  // elements
  size_t bytes() const;
  ncclDataType_t type() const { return type_; }
  const char* name() const { return name_; }
  PyObject* object() const { return object_.ptr(); }

  /// NcclInvalid unless a rank on `device` can use the memory. On virtual GPUs memory of the host
  /// can be: it is registered until the Buffer dies, unless it lies in one of `in_flight`, which
  /// live longer.
  void place_on(int device, std::span<const Buffer> in_flight = {});
  /// True if all its memory is also memory of `other`.
  bool is_within(const Buffer& other) const;

 private:
  static constexpr int kHost = -1;

  /// NcclInvalid if the elements do not lie side by side, or the call writes to read-only memory.
  void require_usable(bool is_dense, bool is_readonly) const;
  [[noreturn]] void throw_elsewhere(int device) const;
  void read_buffer_protocol(bool written);
  void use(DeviceMemory& memory);
  void resolve(bool written);

  const char* name_ = "";
  nanobind::object object_;  // kept alive
  Py_buffer export_{};       // its obj is null where there is none
  void* data_ = nullptr;
  size_t count_ = 0;
  ncclDataType_t type_ = ncclInt8;
  int device_ = kHost;              // as the object says; place_on() corrects it for virtual GPUs
  DeviceMemory* in_use_ = nullptr;  // if object_ is a DeviceMemory
  bool is_registered_ = false;
};

/// "float32" and so on.
const char* name_of(ncclDataType_t type);
size_t size_of(ncclDataType_t type);

}  // namespace niccolite::python
