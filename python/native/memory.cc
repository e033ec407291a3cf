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
    result = allocate(&data_, bytes);
  }
  check(result);
}

void DeviceMemory::close() {
  is_closed_ = true;
  if (users_ == 0) free();
}

void DeviceMemory::end_use() {
  if (--users_ == 0 && is_closed_) free();
}

void DeviceMemory::free() noexcept {
  if (data_ == nullptr) return;
  try {
    const CurrentDevice current(device_);
    const auto& give_back = library().MemFree.loaded();
    const nb::gil_scoped_release released;
    give_back(data_);
  } catch (...) {
    // The device is gone, and its memory with it.
  }
  data_ = nullptr;
}

namespace {

// A row of bytes that can be written.
int export_memory(PyObject* self, Py_buffer* view, int flags) {
  auto& memory = *nb::inst_ptr<DeviceMemory>(self);
  if (!devices().is_virtual() || memory.data() == nullptr) {
    PyErr_SetString(PyExc_BufferError, memory.data() == nullptr
                                           ? "the memory has been freed"
                                           : "memory of a GPU cannot be read by the host");
    return -1;
  }
  const int result = PyBuffer_FillInfo(view, self, memory.data(),
                                       static_cast<Py_ssize_t>(memory.bytes()), 0, flags);
  if (result == 0) memory.begin_use();
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
