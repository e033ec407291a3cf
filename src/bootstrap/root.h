// Root: the meeting point of a rendezvous. It listens at the address in the unique id, takes the
// Join of every rank, and checks that the ranks agree (ranks, count, version). It orders their
// processes by lowest rank and tells each its neighbors, O(log P) of them; from then on processes
// talk among themselves. It stays until each has said Ready, and spreads the first failure to all:
// a contradiction, a process that ended, a deadline that passed with ranks missing.
//
// All roots of a process run on one thread, and the roots of ncclGetUniqueId on one interface share
// one listening port: an arriving process names the id by its number (UniqueId::number), then
// proves that it knows the id's secret. An unused id costs a few hundred bytes, for a day at most.
// The thread ends with the last root, or when the process exits. Thread safety: static functions
// from any thread.
#pragma once

#include "base/address.h"
#include "base/wait.h"
#include "bootstrap/unique_id.h"

namespace niccolite::bootstrap {

class Root {
 public:
  /// Makes an id that leads to this process, by `interface`, where it listens.
  static Result<UniqueId> start(const Address& interface);
  /// For an id of NCCL_COMM_ID: listens on its address, waiting until the root of an earlier
  /// rendezvous has left it.
  static Status start_for(const UniqueId& id, Deadline deadline, const Abort* abort);
  /// Ends the root of `id` if it is a root of this process, and nobody has come to it. Any id will
  /// do.
  static void dismiss(const UniqueId& id);
  /// Roots of this process that still serve.
  static int count_running();
};

/// The processes with which process `self` of `nprocesses` keeps links: at distances of 2^k both
/// ways. Ascending.
std::vector<uint32_t> neighbors_of(uint32_t self, uint32_t nprocesses);

}  // namespace niccolite::bootstrap
