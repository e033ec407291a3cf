// Communicator: a handle of the library, the buffers that its operations use, and cached answers of
// the library. nccl.core.Communicator holds one and adds the rest of the interface.
// Thread safety: one thread at a time, as in the library; only abort() may come from any thread.
// The GIL must be held.
#pragma once

#include <cstdint>
#include <string>

#include "in_flight.h"
#include "nccl.h"

namespace niccolite::python {

struct Communicator {
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  ~Communicator();

  ncclComm_t handle = nullptr;
  bool works_aside = false;  // a call has answered ncclInProgress: later ones may, too
  // Answers of the library; -1 until the first question.
  int nranks = -1;
  int rank = -1;
  int device = -1;
  InFlight in_flight;

  /// Why the handle is null.
  enum class End : uint8_t { NeverMade, Destroyed, Aborted };
  End end = End::NeverMade;

  /// The call that this rank is in, and the peer of a message or signal: texts of interrupts name
  /// them.
  static constexpr int kAllPeers = -1;
  const char* call = nullptr;
  int peer = kAllPeers;
  void enters(const char* name, int with = kAllPeers) {
    call = name;
    peer = with;
  }
  /// Asks for this rank's number and the number of ranks, so that describe_wait() can name them,
  /// also after an abort. Asks nothing while the communicator is null or works in the background.
  void ask_names();
  /// "rank 0 of 3 waited in allreduce for ranks 1, 2"
  std::string describe_wait() const;

  /// NcclInvalid "Cannot <operation>: the communicator has been destroyed", or the other reason for
  /// a null handle.
  void require(const char* operation) const;
  /// Sets the handle to null after its end; nothing that the library answered is true any more.
  void forget(End how);
  int ask_nranks();
  int ask_rank();
  int ask_device();
  /// True if no call works in the background.
  bool is_settled() const;
};

}  // namespace niccolite::python
