// Tensors of PyTorch, asked by their methods: nccl.core.buffer.resolve does the same in Python, and
// takes ten times as long.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

#include "nccl.h"

namespace niccolite::python {

struct TorchTensor {
  void* data;
  size_t count;  // elements
  ncclDataType_t type;
  int device;  // ordinal of the GPU; -1: the host's memory
};

/// What `object` shows if it is a contiguous torch.Tensor of a type that can be communicated;
/// resolve() knows what to say of others. The GIL must be held.
std::optional<TorchTensor> read_torch_tensor(nanobind::handle object);

}  // namespace niccolite::python
