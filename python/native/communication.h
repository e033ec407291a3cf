// The communication calls of a communicator. They check the arguments, queue the operation, and
// keep the buffers. Arguments are Python's as the user gave them; nccl.core.Communicator documents
// each.
//
// On virtual GPUs the program reads its arrays at once. So there a call without a stream returns
// when its result is there; in a group the end of the group does. With a stream, and always on
// GPUs, a call returns when it is queued.
#pragma once

#include <nanobind/nanobind.h>

namespace niccolite::python {

void bind_communication(nanobind::module_& module);

/// The handle of a stream: of None, an integer, nccl.core's own, or anything with __cuda_stream__.
/// NcclInvalid: none of these.
uintptr_t stream_handle(nanobind::handle stream);

}  // namespace niccolite::python
