// HostMemory: how much memory of this machine the process may still take: the smaller of the
// machine's free memory and the limit of its control groups (version 1 or 2, outer groups
// included). Thread safety: any thread. A measurement reads a few files of /proc and /sys, which
// takes about ten microseconds.
#pragma once

#include <cstddef>
#include <string>

namespace niccolite {

struct HostMemory {
  size_t limit = 0;  // that all of it may never exceed
  // free now, which includes caches that can be dropped, but no memory of other processes
  size_t available = 0;
};

/// `root` stands before all paths: a picture of a machine, in tests.
HostMemory measure_host_memory(const std::string& root = "");

}  // namespace niccolite
