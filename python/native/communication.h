// The communication calls of a communicator: checks what can be seen from here, queues, and keeps
// the buffers. Arguments are Python's as the user gave them; nccl.core.Communicator documents each.
//
// When a call is over: on virtual GPUs, where buffers are arrays that the program reads at once, a
// call without a stream returns when its result is there (in a group: the end of the group does).
// With a stream, and on GPUs always, it returns when it is queued.
#pragma once

#include <nanobind/nanobind.h>

namespace niccolite::python {

void bind_communication(nanobind::module_& module);

/// The handle of a stream: of None, an integer, nccl.core's own, or anything with __cuda_stream__.
/// NcclInvalid: none of these.
uintptr_t stream_handle(nanobind::handle stream);

}  // namespace niccolite::python
