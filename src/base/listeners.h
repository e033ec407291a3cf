// Processes that listen at a TCP address of this network namespace, as /proc has them: for messages
// about an address that is taken. Thread safety: any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/address.h"

namespace niccolite {

struct ListeningProcess {
  pid_t number = 0;      // as this process sees it
  std::string name;      // as ps has it
  uint64_t started = 0;  // clock ticks after the boot
};

struct Listeners {
  std::vector<ListeningProcess> processes;  // oldest first; /proc may hide other users' ones
  std::vector<uid_t> users;                 // of all that listen, hidden or not; ascending

  /// "process 4711 (python3)", "a process of user 1000", or "another process".
  std::string text() const;
};

/// Finds the sockets that listen at `address`, or at its port on all addresses. Reads the
/// descriptors of every process that this one may look at: some milliseconds.
Listeners listeners_at(const Address& address);

}  // namespace niccolite
