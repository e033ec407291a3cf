// Programs of one step, in the form that the kernels of direct.cuh read. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "executor/cuda/image.h"

namespace niccolite::executor::cuda {

/// What stands behind the works, and which kernel reads it.
struct DirectImage {
  Form form;
  uint32_t most_peers;
  uint32_t threads;
  std::vector<std::byte> bytes;
};

/// The launch for such a kernel; nothing when the program is not of that kind: of one work, in
/// which all lanes send blocks of the input, fold or receive blocks into the output, or copy the
/// own one, and send nothing that they received; or of several messages. `reduces`: for a kernel
/// that reduces.
std::optional<DirectImage> direct_image(const Launch& launch, bool reduces);

/// The same of a list.
struct ListParameters {
  uint32_t most_peers;
  uint32_t threads;
  uint32_t works_at;             // bytes from the start of a ListImage to its works
  std::vector<std::byte> bytes;  // a ListImage
};

/// A list (Launch::is_list()) of a program of such a work by LL, in which all peers are sent the
/// own block: nothing for others.
std::optional<ListParameters> list_image(const Launch& launch, bool reduces);

/// A list over buffers that all ranks reach, of a program of such a work that connects all ranks in
/// both directions: nothing for others. `bytes` are a DirectListImage.
struct DirectListParameters {
  ListParameters list;
  uint32_t shared_bytes;
};
std::optional<DirectListParameters> direct_list_image(const Launch& launch);

}  // namespace niccolite::executor::cuda
