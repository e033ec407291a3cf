// Calls of the library that may wait, and waits for queued operations. The thread gives up the GIL
// meanwhile, and Ctrl-C ends the wait.
#pragma once

#include <nanobind/nanobind.h>

#include <span>
#include <string>
#include <utility>

#include "communicator.h"
#include "devices.h"
#include "errors.h"
#include "interrupts.h"

namespace niccolite::python {

/// Throws the exception that a signal's handler has raised, if there is one. A KeyboardInterrupt
/// without a text gets "<wait>. Its communicator was aborted." and how to find the late rank.
void throw_if_interrupted(const std::string& wait, bool is_aborted);
/// Does so for a call of these communicators, and marks those as aborted that Ctrl-C has aborted.
void throw_if_interrupted(std::span<Communicator* const> communicators);

/// Runs `call`, which returns an ncclResult_t, without the GIL, and returns its result, whatever it
/// is. Ctrl-C aborts `communicators`.
template <typename Call>
ncclResult_t run_unchecked(std::span<ncclComm_t* const> communicators, Call&& call) {
  const nanobind::gil_scoped_release released;
  const InterruptibleWait wait(communicators);
  return std::forward<Call>(call)();
}
/// Runs `call` of one or several communicators. Ctrl-C aborts them and raises KeyboardInterrupt; a
/// failure raises NCCLError.
template <typename Call>
ncclResult_t run(std::span<Communicator* const> communicators, std::span<ncclComm_t* const> handles,
                 Call&& call) {
  const ncclResult_t result = run_unchecked(handles, std::forward<Call>(call));
  if (result == ncclSuccess || result == ncclInProgress) [[likely]]
    return result;
  // An interrupted call fails because of the interrupt.
  throw_if_interrupted(communicators);
  check(result);
  return result;
}
template <typename Call>
ncclResult_t run(Communicator& communicator, Call&& call) {
  Communicator* const one[] = {&communicator};
  ncclComm_t* const handles[] = {&communicator.handle};
  const ncclResult_t result = run(one, handles, std::forward<Call>(call));
  communicator.works_aside |= result == ncclInProgress;
  return result;
}

/// Waits until the communicator does nothing in the background. NCCLError: a background call has
/// failed.
void wait_settled(Communicator& communicator);
/// Waits until the communicator's operations on `stream` are finished. Ctrl-C aborts the
/// communicator. `group`: all communicators of the group of calls, or this one alone.
/// NCCLError: one of `group` has failed; its queued operations may still use their buffers until
/// the communicator is ended. NcclInvalid: another thread has aborted the communicator.
void wait_finished(Communicator& communicator, Stream stream, std::span<Communicator* const> group);
/// Waits until `stream` (0: the default stream of `device`) is idle.
void wait_idle(int device, Stream stream);

}  // namespace niccolite::python
