#include "errors.h"

#include <nanobind/nanobind.h>

#include "library.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

[[noreturn]] void throw_instance(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

nb::object attribute(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

}  // namespace

void throw_invalid(const std::string& message) {
  throw_instance(attribute("nccl.core.typing", "NcclInvalid")(message.c_str()));
}

void throw_runtime_error(const std::string& message) {
  PyErr_SetString(PyExc_RuntimeError, message.c_str());
  throw nb::python_error();
}

void throw_function_not_found(const char* name) {
  const std::string message = std::string("function ") + name + " is not found";
  throw_instance(
      attribute("nccl.bindings._internal.utils", "FunctionNotFoundError")(message.c_str()));
}

void check(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* detail = library().GetLastError(nullptr);
  throw_instance(attribute("nccl.bindings.nccl", "NCCLError")(static_cast<int>(result),
                                                              detail != nullptr ? detail : ""));
}

}  // namespace niccolite::python
