#include "memory.h"

#include <string>

#include "devices.h"
#include "errors.h"
#include "library.h"

namespace nb = nanobind;

namespace niccolite::python {

DeviceMemory::DeviceMemory(size_t bytes, int device) : bytes_(bytes), device_(device) {
  const CurrentDevice current(device);
  const auto& allocate = library().MemAlloc.loaded();
  ncclResult_t result;
  {
    const nb::gil_scoped_release released;
    void* data = nullptr;
    result = allocate(&data, bytes);
    data_.store(data, std::memory_order_relaxed);  // nobody else knows the object yet
  }
  check(result);
}

void DeviceMemory::close() {
  if (state_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) free();
}

void* DeviceMemory::begin_use() {
  if ((state_.fetch_add(1, std::memory_order_acq_rel) & kClosed) != 0) {
    end_use();
    return nullptr;
  }
  return data_.load(std::memory_order_relaxed);
}

void DeviceMemory::end_use() {
  if (state_.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) free();
}

void DeviceMemory::free() noexcept {
  void* const data = data_.exchange(nullptr, std::memory_order_acq_rel);
  if (data == nullptr) return;
  try {
    const CurrentDevice current(device_);
    const auto& give_back = library().MemFree.loaded();
    const nb::gil_scoped_release released;
    give_back(data);
  } catch (...) {
    // The device is gone, and its memory with it.
  }
}

namespace {

// A row of bytes that can be written.
int export_memory(PyObject* self, Py_buffer* view, int flags) {
  auto& memory = *nb::inst_ptr<DeviceMemory>(self);
  if (!devices().is_virtual()) {
    PyErr_SetString(PyExc_BufferError, "memory of a GPU cannot be read by the host");
    return -1;
  }
  void* const data = memory.begin_use();
  if (data == nullptr) {
    PyErr_SetString(PyExc_BufferError, "the memory has been freed");
    return -1;
  }
  const int result =
      PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(memory.bytes()), 0, flags);
  if (result != 0) memory.end_use();
  return result;
}

void end_export(PyObject* self, Py_buffer*) { nb::inst_ptr<DeviceMemory>(self)->end_use(); }

}  // namespace

void bind_memory(nb::module_& module) {
  static PyType_Slot slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(&export_memory)},
      {Py_bf_releasebuffer, reinterpret_cast<void*>(&end_export)},
      {0, nullptr},
  };
  nb::class_<DeviceMemory>(module, "DeviceMemory", nb::type_slots(slots),
                           nb::is_weak_referenceable())
      .def(nb::init<size_t, int>())
      .def_prop_ro(
          "address",
          [](const DeviceMemory& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def_prop_ro("nbytes", &DeviceMemory::bytes)
      .def_prop_ro("device", &DeviceMemory::device)
      .def("close", &DeviceMemory::close);
  module.def("free", [](uintptr_t address, int device) {
    const CurrentDevice current(device);
    const auto& give_back = library().MemFree.loaded();
    const nb::gil_scoped_release released;
    give_back(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
  });
}

}  // namespace niccolite::python
