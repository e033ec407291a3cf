#include "gpu_arrays.h"

#include "found_once.h"
#include "numpy_array.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

// A name that Python looks up without making it anew.
struct Name {
  explicit Name(const char* text) : object(PyUnicode_InternFromString(text)) {}
  PyObject* const object;
};

nb::object attribute(nb::handle object, const Name& name) {
  nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name.object));
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

nb::object ask(nb::handle object, const Name& method) {
  PyObject* arguments[] = {object.ptr()};
  nb::object answer = nb::steal(PyObject_VectorcallMethod(method.object, arguments, 1, nullptr));
  if (!answer.is_valid()) throw nb::python_error();
  return answer;
}

size_t number(const nb::object& object) {
  const size_t value = PyLong_AsSize_t(object.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

void* address(const nb::object& object) {
  return reinterpret_cast<void*>(number(object));  // NOLINT(performance-no-int-to-ptr)
}

bool is_instance(nb::handle object, nb::handle type) {
  return type.is_valid() &&
         PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

// {torch.dtype: NcclDataType}
nb::handle torch_types() {
  static FoundOnce types;
  return types.get([] { return nb::module_::import_("nccl.core.interop.torch").attr("_types")(); });
}

std::optional<GpuArray> read_tensor(nb::handle tensor) {
  static const Name dtype("dtype");
  static const Name is_contiguous("is_contiguous");
  static const Name data_ptr("data_ptr");
  static const Name numel("numel");
  static const Name get_device("get_device");
  PyObject* const type =
      PyDict_GetItemWithError(torch_types().ptr(), attribute(tensor, dtype).ptr());
  if (type == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return std::nullopt;
  }
  if (!ask(tensor, is_contiguous).is(Py_True)) return std::nullopt;
  return GpuArray{.data = address(ask(tensor, data_ptr)),
                  .count = number(ask(tensor, numel)),
                  .type = static_cast<ncclDataType_t>(PyLong_AsLong(type)),
                  .device = nb::cast<int>(ask(tensor, get_device))};  // -1: none
}

std::optional<GpuArray> read_cupy_array(nb::handle array) {
  static const Name dtype("dtype");
  static const Name num("num");
  static const Name is_row_major("_c_contiguous");  // `flags` makes an object
  static const Name data("data");
  static const Name size("size");
  static const Name ptr("ptr");
  static const Name device_id("device_id");
  if (PyObject_HasAttr(array.ptr(), is_row_major.object) == 0) return std::nullopt;
  if (PyObject_IsTrue(attribute(array, is_row_major).ptr()) != 1) return std::nullopt;
  const ncclDataType_t type = type_of_numpy(number(attribute(attribute(array, dtype), num)));
  if (type == ncclNumTypes) return std::nullopt;  // bool among them
  const nb::object memory = attribute(array, data);
  return GpuArray{.data = address(attribute(memory, ptr)),
                  .count = number(attribute(array, size)),
                  .type = type,
                  .device = nb::cast<int>(attribute(memory, device_id))};
}

}  // namespace

std::optional<GpuArray> read_gpu_array(nb::handle object) {
  static FoundOnce tensor;
  static FoundOnce array;
  if (is_instance(object, tensor.get([] { return class_of_imported("torch", "Tensor"); })))
    return read_tensor(object);
  if (is_instance(object, array.get([] { return class_of_imported("cupy", "ndarray"); })))
    return read_cupy_array(object);
  return std::nullopt;
}

}  // namespace niccolite::python
