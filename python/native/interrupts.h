// Interrupts: Ctrl-C while the main thread waits inside the library.
//
// Python's own handler only notes the signal and raises KeyboardInterrupt when the interpreter runs
// again, which a thread that waits in C does not let it do. So a handler stands before Python's: it
// passes the signal on and wakes a thread, which aborts the communicators that the main thread is
// waiting for, if it is. The call then returns, and the exception is raised. In other threads, and
// where SIGINT is not Python's, nothing happens here.
#pragma once

#include <span>

#include "nccl.h"

namespace niccolite::python {

/// Stands around a call of the library that may wait. It costs two atomic operations.
class InterruptibleWait {
 public:
  /// `communicators`: places of handles, which may be null until the call stores them, and are when
  /// the call was interrupted. They must live as long as this object.
  explicit InterruptibleWait(std::span<ncclComm_t* const> communicators);
  /// Needs no GIL.
  ~InterruptibleWait();
  InterruptibleWait(const InterruptibleWait&) = delete;

 private:
  friend void abort_when_woken();
  const std::span<ncclComm_t* const> communicators_;
  bool is_watched_ = false;
};

/// Takes the handle out of its place, which is null then. A thread that ends a communicator does so
/// first, because another thread may be waiting for it. The waiting thread then does not ask about
/// a handle that the library has forgotten, and does not take aborted work for finished. Any
/// thread.
ncclComm_t take(ncclComm_t& place);
/// Returns the state of ncclCommGetAsyncError, or the error of that call; success if the handle was
/// taken out. Any thread; the function must have been looked up before.
ncclResult_t ask_async_error(ncclComm_t& place);

bool is_main_thread();
/// Puts the handler before Python's, unless it stands there. For calls of the main thread that make
/// communicators or wait long; elsewhere nothing happens. The GIL must be held.
void watch_for_interrupts();

}  // namespace niccolite::python
