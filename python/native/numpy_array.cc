#include "numpy_array.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "buffer.h"
#include "found_once.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

// PyArray_Descr's first members.
struct Descriptor {
  PyObject_HEAD  // NOLINT: a macro of Python's
      PyTypeObject* scalar_type;
  char kind;
  char type;
  char byte_order;
  char flags;
  int number;
};

// PyArrayObject's.
struct Array {
  PyObject_HEAD  // NOLINT: a macro of Python's
      char* data;
  int rank;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  Descriptor* descriptor;
  int flags;
};
constexpr int kIsRowMajor = 0x1;
constexpr int kIsColumnMajor = 0x2;
constexpr int kIsWriteable = 0x400;

// Types by NPY_TYPES; long and unsigned long have 8 bytes on CUDA's platforms.
static_assert(sizeof(long) == 8);
constexpr std::array<ncclDataType_t, 24> kTypes = [] {
  std::array<ncclDataType_t, 24> types{};
  types.fill(ncclNumTypes);
  types[1] = ncclInt8;
  types[2] = ncclUint8;
  types[5] = ncclInt32;
  types[6] = ncclUint32;
  types[7] = types[9] = ncclInt64;
  types[8] = types[10] = ncclUint64;
  types[11] = ncclFloat32;
  types[12] = ncclFloat64;
  types[23] = ncclFloat16;
  return types;
}();

nb::handle array_type() {
  static FoundOnce type;
  return type.get([] { return class_of_imported("numpy", "ndarray"); });
}

}  // namespace

ncclDataType_t type_of_numpy(size_t number) {
  return number < kTypes.size() ? kTypes[number] : ncclNumTypes;
}

bool is_dense(size_t rank, const Py_ssize_t* shape, const Py_ssize_t* strides, size_t itemsize) {
  std::vector<std::pair<Py_ssize_t, Py_ssize_t>> steps;  // (stride, extent), the nearest first
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] == 0) return true;
    if (shape[i] > 1) steps.emplace_back(strides[i], shape[i]);
  }
  std::sort(steps.begin(), steps.end());
  auto expected = static_cast<Py_ssize_t>(itemsize);
  for (const auto& [stride, extent] : steps) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

std::optional<NumpyArray> read_numpy_array(nb::handle object) {
  const nb::handle numpy = array_type();
  if (!numpy.is_valid() ||
      PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(numpy.ptr())) == 0)
    return std::nullopt;
  const auto& array = *reinterpret_cast<const Array*>(object.ptr());
  const ncclDataType_t type = type_of_numpy(static_cast<unsigned>(array.descriptor->number));
  const bool is_foreign = array.descriptor->byte_order == '>';
  if (type == ncclNumTypes || is_foreign) return std::nullopt;
  NumpyArray found{.data = array.data,
                   .count = 1,
                   .type = type,
                   .is_dense = (array.flags & (kIsRowMajor | kIsColumnMajor)) != 0,
                   .is_readonly = (array.flags & kIsWriteable) == 0};
  const auto rank = static_cast<size_t>(array.rank);
  for (size_t i = 0; i < rank; ++i) found.count *= static_cast<size_t>(array.shape[i]);
  if (!found.is_dense) [[unlikely]]
    found.is_dense = is_dense(rank, array.shape, array.strides, size_of(found.type));
  return found;
}

}  // namespace niccolite::python
