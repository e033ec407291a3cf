#include "buffer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "devices.h"
#include "errors.h"
#include "found_once.h"
#include "gpu_arrays.h"
#include "host_ranges.h"
#include "memory.h"
#include "numpy_array.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};
constexpr std::array<TypeInfo, ncclNumTypes> kTypes{{{"int8", 1},
                                                     {"uint8", 1},
                                                     {"int32", 4},
                                                     {"uint32", 4},
                                                     {"int64", 8},
                                                     {"uint64", 8},
                                                     {"float16", 2},
                                                     {"float32", 4},
                                                     {"float64", 8},
                                                     {"bfloat16", 2},
                                                     {"float8_e4m3fn", 1},
                                                     {"float8_e5m2", 1}}};

// The element type of a format of the struct module, in native byte order; ncclNumTypes for other
// formats.
ncclDataType_t element_type(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) return ncclUint8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return ncclNumTypes;
  switch (format[0]) {
    case 'f':
      return ncclFloat32;
    case 'd':
      return ncclFloat64;
    case 'e':
      return ncclFloat16;
    case 'b':
      return ncclInt8;
    case 'B':
    case 'c':
      return ncclUint8;
    case 'i':
    case 'l':
    case 'q':
      return itemsize == 4 ? ncclInt32 : itemsize == 8 ? ncclInt64 : ncclNumTypes;
    case 'I':
    case 'L':
    case 'Q':
      return itemsize == 4 ? ncclUint32 : itemsize == 8 ? ncclUint64 : ncclNumTypes;
    default:
      return ncclNumTypes;
  }
}

// "dtype int16", or "elements of the format 'h'" of an object without a dtype.
std::string describe_type(nb::handle object, const char* format) {
  if (const nb::object dtype = nb::getattr(object, "dtype", nb::none()); !dtype.is_none())
    return std::string("dtype ") + nb::str(dtype).c_str();
  return std::string("elements of the format '") + format + "'";
}

std::string list_types() {
  std::string text;
  for (const TypeInfo& type : kTypes) text += (text.empty() ? "" : ", ") + std::string(type.name);
  return text;
}

nb::handle resolver() {
  static FoundOnce resolve;
  return resolve.get([] { return nb::module_::import_("nccl.core.buffer").attr("resolve"); });
}

}  // namespace

const char* name_of(ncclDataType_t type) { return kTypes[type].name; }
size_t size_of(ncclDataType_t type) { return kTypes[type].bytes; }

// Delegates to Buffer(), so that the destructor runs if this constructor throws.
Buffer::Buffer(const char* name, nb::handle object, bool written) : Buffer() {
  name_ = name;
  object_ = nb::borrow(object);
  static auto* const device_memory =
      reinterpret_cast<PyTypeObject*>(nb::type<DeviceMemory>().ptr());
  if (PyObject_TypeCheck(object.ptr(), device_memory) != 0) {
    use(*nb::inst_ptr<DeviceMemory>(object));
    return;
  }
  if (const auto array = read_numpy_array(object)) {
    require_usable(array->is_dense, written && array->is_readonly);
    data_ = array->data;
    count_ = array->count;
    type_ = array->type;
    return;
  }
  if (const auto array = read_gpu_array(object)) {
    data_ = array->data;
    count_ = array->count;
    type_ = array->type;
    device_ = array->device;
    return;
  }
  constexpr int kWanted = PyBUF_FORMAT | PyBUF_STRIDES;
  if (PyObject_CheckBuffer(object.ptr()) != 0 &&
      PyObject_GetBuffer(object.ptr(), &export_, kWanted) == 0) {
    read_buffer_protocol(written);
    return;
  }
  PyErr_Clear();  // e.g. NumPy's of ml_dtypes, which has no format for them
  export_ = {};
  resolve(written);
}

void Buffer::use(DeviceMemory& memory) {
  data_ = memory.begin_use();
  if (data_ == nullptr) throw_invalid(std::string(name_) + " has been freed");
  in_use_ = &memory;
  count_ = memory.bytes();
  device_ = memory.device();
}

void Buffer::require_usable(bool is_dense, bool is_readonly) const {
  if (!is_dense) [[unlikely]]
    throw_invalid(std::string(name_) +
                  " is not contiguous: its elements must lie side by side "
                  "(numpy.ascontiguousarray makes such a copy)");
  if (is_readonly) [[unlikely]]
    throw_invalid(std::string(name_) + " is read-only, and the call writes to it");
}

void Buffer::read_buffer_protocol(bool written) {
  type_ = element_type(export_.format, export_.itemsize);
  if (type_ == ncclNumTypes) [[unlikely]]
    throw_invalid(std::string(name_) + " has " + describe_type(object_, export_.format) +
                  ", which is not communicated. The dtypes are " + list_types() +
                  ". Convert it (x.astype(numpy.float32)); a call that only moves data can also "
                  "take a view of the bytes (x.view(numpy.uint8)).");
  require_usable(is_dense(static_cast<size_t>(export_.ndim), export_.shape, export_.strides,
                          static_cast<size_t>(export_.itemsize)),
                 written && export_.readonly != 0);
  data_ = export_.buf;
  count_ = static_cast<size_t>(export_.len / export_.itemsize);
}

// (address, elements, type, device, object that keeps the memory alive)
void Buffer::resolve(bool written) {
  const nb::object found = resolver()(object_, nb::str(name_), nb::bool_(written));
  const auto [address, count, type, device, owner] =
      nb::cast<std::tuple<uintptr_t, size_t, int, int, nb::object>>(found);
  data_ = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  count_ = count;
  type_ = static_cast<ncclDataType_t>(type);
  device_ = device;
  object_ = owner;
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(object_, other.object_);
  std::swap(export_, other.export_);
  std::swap(data_, other.data_);
  std::swap(count_, other.count_);
  std::swap(type_, other.type_);
  std::swap(device_, other.device_);
  std::swap(in_use_, other.in_use_);
  std::swap(is_registered_, other.is_registered_);
  return *this;
}

Buffer::~Buffer() {
  if (is_registered_) HostRanges::instance().release(data_, bytes());
  if (export_.obj != nullptr) PyBuffer_Release(&export_);
  if (in_use_ != nullptr) in_use_->end_use();
}

size_t Buffer::bytes() const { return count_ * size_of(type_); }

bool Buffer::is_within(const Buffer& other) const {
  const auto* const begin = static_cast<const std::byte*>(data_);
  const auto* const others = static_cast<const std::byte*>(other.data_);
  return begin >= others && begin + bytes() <= others + other.bytes();
}

void Buffer::place_on(int device, std::span<const Buffer> in_flight) {
  if (device_ == device) return;
  if (device_ != kHost) throw_elsewhere(device);
  if (!devices().is_virtual())
    throw_invalid(std::string(name_) + " is on device host, but communicator is on device " +
                  std::to_string(device) +
                  ": a GPU needs its own memory (CuPy, PyTorch, nccl.core.mem_alloc)");
  if (count_ == 0) return;
  // A buffer in flight keeps its memory alive, so its device and registration are still valid.
  const bool is_known = std::any_of(in_flight.begin(), in_flight.end(), [&](const Buffer& other) {
    return (other.is_registered_ || other.device_ == device) && is_within(other);
  });
  if (is_known) return;
  // Memory of a virtual GPU is the host's, too.
  if (const Place place = devices().place_of(data_); place.kind == Place::Kind::Device) {
    device_ = place.device;
    if (device_ != device) throw_elsewhere(device);
    return;
  }
  if (!HostRanges::instance().acquire(data_, bytes()))
    throw_invalid(std::string(name_) + " lies in memory that virtual GPUs cannot reach");
  is_registered_ = true;
}

void Buffer::throw_elsewhere(int device) const {
  throw_invalid(std::string(name_) + " is on device " + std::to_string(device_) +
                ", but the communicator is on device " + std::to_string(device) +
                ": allocate it there, or copy it");
}

}  // namespace niccolite::python
