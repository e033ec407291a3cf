// niccolite._native: the extension under nccl.core. Nothing here is for users; handles are
// integers, and arguments have no names.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdio>
#include <string>
#include <vector>

#include "communication.h"
#include "communicators.h"
#include "config.h"
#include "devices.h"
#include "errors.h"
#include "library.h"
#include "memory.h"
#include "stream.h"
#include "waiting.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

// Describes an object that has __dlpack__ for nccl.core.buffer, without a synchronisation of
// streams: (address, shape, strides in elements, type code, bits, lanes, device type, device).
nb::tuple describe_dlpack(const nb::ndarray<nb::ro>& array) {
  nb::list shape;
  nb::list strides;
  for (size_t i = 0; i < array.ndim(); ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i));
  }
  const nb::dlpack::dtype type = array.dtype();
  return nb::make_tuple(reinterpret_cast<uintptr_t>(array.data()), shape, strides, type.code,
                        type.bits, type.lanes, array.device_type(), array.device_id());
}

// A row of bytes of `owner`, as a capsule of DLPack.
nb::object as_dlpack(uintptr_t address, size_t bytes, int device_type, int device,
                     nb::handle owner) {
  return nb::cast(nb::ndarray<int8_t, nb::ndim<1>>(
      reinterpret_cast<void*>(address),  // NOLINT(performance-no-int-to-ptr)
      {bytes}, owner, {}, nb::dtype<int8_t>(), device_type, device));
}

uintptr_t address_of(const nb::handle& object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

void bind_library(nb::module_& module) {
  module.def("library_path", [] { return library().path(); });
  module.def("library_version", [] {
    int version = 0;
    check(library().GetVersion(&version));
    return version;
  });
  module.def("error_string", [](int result) {
    const std::string text = library().GetErrorString(static_cast<ncclResult_t>(result));
    // In brackets C's text names ncclGetLastError, whose answer NCCLError has already.
    return text.substr(0, text.find(" (ncclGetLastError"));
  });
}

void bind_parameters(nb::module_& module) {
  module.def("parameter_names", [] {
    const char** names = nullptr;
    int count = 0;
    check(library().ParamGetAllParameterKeys(&names, &count));
    return std::vector<std::string>(names, names + count);
  });
  module.def("parameter", [](const std::string& name) {
    const char* text = nullptr;
    int length = 0;
    check(library().ParamGetParameter(name.c_str(), &text, &length));
    return std::string(text, static_cast<size_t>(length));
  });
  module.def("print_parameters", [] {
    library().ParamDumpAll();
    std::fflush(stdout);
  });
}

void bind_devices(nb::module_& module) {
  module.def("are_devices_chosen", &are_devices_chosen);
  module.def("is_virtual", [] { return devices().is_virtual(); });
  module.def("device_count", [] { return devices().count(); });
  module.def("current_device", [] { return devices().current(); });
  module.def("set_current_device", [](int device) { devices().set_current(device); });
  module.def("device_of", [](uintptr_t address) {
    const Place place =
        devices().place_of(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
    return place.device;
  });
  module.def("stream_handle", &stream_handle, nb::arg().none());
  module.def(
      "wait_idle",
      [](int device, nb::handle stream) {
        watch_for_interrupts();
        wait_idle(device, stream_handle(stream));
      },
      nb::arg(), nb::arg().none());
  module.def("copy", [](uintptr_t target, uintptr_t source, size_t bytes) {
    devices().copy(reinterpret_cast<void*>(target),          // NOLINT(performance-no-int-to-ptr)
                   reinterpret_cast<void*>(source), bytes);  // NOLINT(performance-no-int-to-ptr)
  });
  nb::class_<OwnedStream>(module, "Stream", nb::is_weak_referenceable())
      .def(nb::init<int>())
      .def_prop_ro("handle", &OwnedStream::handle)
      .def_prop_ro("device", &OwnedStream::device)
      .def("close", &OwnedStream::close);
}

}  // namespace
}  // namespace niccolite::python

NB_MODULE(_native, module) {
  using namespace niccolite::python;
  // The leaks that matter are counted in tests; at the interpreter's end communicators may be left.
  nb::set_leak_warnings(false);
  bind_library(module);
  bind_parameters(module);
  bind_devices(module);
  bind_memory(module);
  bind_configs(module);
  bind_communicators(module);
  bind_resources(module);
  bind_communication(module);
  module.def("describe_dlpack", &describe_dlpack);
  module.def("as_dlpack", &as_dlpack);
  module.def("address_of", &address_of);
}
