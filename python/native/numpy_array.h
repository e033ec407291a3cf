// Reads NumPy's arrays in the layout of NumPy's binary interface. The buffer protocol would write
// out the format and the shape of each array anew at every call, which takes half a microsecond for
// two.
//
// The members read here have had their place since NumPy 1.7 and are part of the interface against
// which extensions are compiled, in NumPy 2 as well.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

#include "nccl.h"

namespace niccolite::python {

struct NumpyArray {
  void* data;
  size_t count;  // elements
  ncclDataType_t type;
  bool is_dense;  // the elements lie side by side, in whatever order of the indices
  bool is_readonly;
};

/// Reads a numpy.ndarray, or an object of a derived class, if its elements have a type of NumPy
/// itself that can be communicated. The GIL must be held.
std::optional<NumpyArray> read_numpy_array(nanobind::handle object);

/// The type with this number of NumPy's (its NPY_TYPES); ncclNumTypes where none can be
/// communicated.
ncclDataType_t type_of_numpy(size_t number);

/// Do elements of `itemsize` bytes lie side by side, in whatever order of the `rank` indices?
/// `strides` in bytes. One element or none does.
bool is_dense(size_t rank, const Py_ssize_t* shape, const Py_ssize_t* strides, size_t itemsize);

}  // namespace niccolite::python
