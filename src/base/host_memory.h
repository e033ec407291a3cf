// HostMemory: how much memory of this machine the process may still take: what the machine has left
// and what its control groups (version 1 or 2, the outer ones included) allow, whichever is less.
// Thread safety: any thread. A measurement reads a few files of /proc and /sys: some ten
// microseconds.
#pragma once

#include <cstddef>
#include <string>

namespace niccolite {

struct HostMemory {
  size_t limit = 0;      // that all of it may never exceed
  size_t available = 0;  // of it, now; what others use is gone, caches that can be dropped are not
};

/// `root` stands before all paths: a picture of a machine, in tests.
HostMemory measure_host_memory(const std::string& root = "");

}  // namespace niccolite
