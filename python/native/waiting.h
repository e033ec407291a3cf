// Calls of the library that may wait, and waits for what it has queued: without the GIL, and ended
// by Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <span>
#include <utility>

#include "communicator.h"
#include "devices.h"
#include "errors.h"
#include "interrupts.h"

namespace niccolite::python {

/// Runs `call`, which returns an ncclResult_t, without the GIL. Ctrl-C aborts `communicators` and
/// raises KeyboardInterrupt; a failure raises NCCLError.
template <typename Call>
ncclResult_t run(std::span<ncclComm_t* const> communicators, Call&& call) {
  ncclResult_t result;
  {
    const nanobind::gil_scoped_release released;
    const InterruptibleWait wait(communicators);
    result = std::forward<Call>(call)();
  }
  if (result == ncclSuccess || result == ncclInProgress) [[likely]]
    return result;
  // What the call answers when it was interrupted is a consequence of that.
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  check(result);
  return result;
}
template <typename Call>
ncclResult_t run(Communicator& communicator, Call&& call) {
  ncclComm_t* const handles[] = {&communicator.handle};
  const ncclResult_t result = run(std::span<ncclComm_t* const>(handles), std::forward<Call>(call));
  communicator.works_aside |= result == ncclInProgress;
  return result;
}

/// Waits until the communicator works on nothing in the background. NCCLError: its work has failed.
void wait_settled(Communicator& communicator);
/// Waits until the communicator's operations on `stream` are finished. Ctrl-C aborts it.
/// NCCLError: one of `group`, the communicators that were called together with it, it included, has
/// failed; what it has queued may go on and use its buffers until it is ended. NcclInvalid: another
/// thread has aborted it.
void wait_finished(Communicator& communicator, Stream stream, std::span<Communicator* const> group);
/// Waits until `stream` (0: the default stream of `device`) has done all that was queued.
void wait_idle(int device, Stream stream);

}  // namespace niccolite::python
