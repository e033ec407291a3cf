#include "torch_tensor.h"

#include "found_once.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

nb::handle tensor_type() {
  static FoundOnce type;
  return type.get([] { return class_of_imported("torch", "Tensor"); });
}

// {torch.dtype: NcclDataType}
nb::handle known_types() {
  static FoundOnce types;
  return types.get([] { return nb::module_::import_("nccl.core.interop.torch").attr("_types")(); });
}

// A name that Python looks up without making it anew.
struct Name {
  explicit Name(const char* text) : object(PyUnicode_InternFromString(text)) {}
  PyObject* const object;
};

nb::object ask(nb::handle tensor, const Name& method) {
  PyObject* arguments[] = {tensor.ptr()};
  nb::object answer = nb::steal(PyObject_VectorcallMethod(method.object, arguments, 1, nullptr));
  if (!answer.is_valid()) throw nb::python_error();
  return answer;
}

size_t ask_number(nb::handle tensor, const Name& method) {
  const nb::object answer = ask(tensor, method);
  const size_t number = PyLong_AsSize_t(answer.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

}  // namespace

std::optional<TorchTensor> read_torch_tensor(nb::handle object) {
  const nb::handle tensor = tensor_type();
  if (!tensor.is_valid() ||
      PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(tensor.ptr())) == 0)
    return std::nullopt;
  static const Name dtype("dtype");
  static const Name is_contiguous("is_contiguous");
  static const Name data_ptr("data_ptr");
  static const Name numel("numel");
  static const Name get_device("get_device");
  const nb::object type = nb::steal(PyObject_GetAttr(object.ptr(), dtype.object));
  if (!type.is_valid()) throw nb::python_error();
  PyObject* const known = PyDict_GetItemWithError(known_types().ptr(), type.ptr());
  if (known == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return std::nullopt;
  }
  if (!ask(object, is_contiguous).is(Py_True)) return std::nullopt;
  const nb::object device = ask(object, get_device);  // -1: none
  return TorchTensor{.data = reinterpret_cast<void*>(
                         ask_number(object, data_ptr)),  // NOLINT(performance-no-int-to-ptr)
                     .count = ask_number(object, numel),
                     .type = static_cast<ncclDataType_t>(PyLong_AsLong(known)),
                     .device = static_cast<int>(PyLong_AsLong(device.ptr()))};
}

}  // namespace niccolite::python
