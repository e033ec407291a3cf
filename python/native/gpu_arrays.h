// Reads tensors of PyTorch and arrays of CuPy by their methods and attributes.
// nccl.core.buffer.resolve does so in Python, and takes five times as long.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

#include "nccl.h"

namespace niccolite::python {

struct GpuArray {
  void* data;
  size_t count;  // elements
  ncclDataType_t type;
  int device;  // ordinal of the GPU; -1: the host's memory
};

/// Reads a torch.Tensor or a cupy.ndarray, in row-major order, of a type that can be communicated.
/// For other objects resolve() finds the memory or the error. The GIL must be held.
std::optional<GpuArray> read_gpu_array(nanobind::handle object);

}  // namespace niccolite::python
