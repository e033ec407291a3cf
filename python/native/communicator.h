// Communicator: a handle of the library with what its calls need: the buffers in flight, and what
// the library was asked once. nccl.core.Communicator holds one and adds the rest.
// Thread safety: as the library's, one thread at a time, abort() excepted. The GIL must be held.
#pragma once

#include "in_flight.h"
#include "nccl.h"

namespace niccolite::python {

struct Communicator {
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  ~Communicator();

  ncclComm_t handle = nullptr;
  bool works_aside = false;  // a call has answered ncclInProgress: later ones may, too
  // Asked when first wanted; -1: not yet.
  int nranks = -1;
  int rank = -1;
  int device = -1;
  InFlight in_flight;

  /// NcclInvalid "Cannot <operation>: Communicator not initialized".
  void require(const char* operation) const;
  int ask_nranks();
  int ask_rank();
  int ask_device();
  /// Has nothing going on in the background?
  bool is_settled() const;
};

}  // namespace niccolite::python
