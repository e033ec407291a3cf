// Kernels that reach ranks of all machines by themselves, with every byte checked; for roles of
// tests with several machines.
#pragma once

#include "tests/multi_process/ranks.h"

namespace niccolite::test {

/// The ranks of this process are `first`, first + 1, ...
struct GinProgram {
  int nranks = 0;
  int first = 0;
  int team = 1;         // ranks of a load-store team
  size_t each = 20000;  // words of a put
  int rounds = 3;
};

/// Windows, device communicators, and kernels that put, get, count, signal and meet at barriers.
/// All ranks call it; false, and a line, when something was wrong.
bool exchange_by_kernels(LocalRanks& ranks, const GinProgram& program);

/// Device communicators that come and go leave no thread and no descriptor. All ranks call it.
bool leave_nothing_behind(LocalRanks& ranks);

/// One of two ranks, each on a machine of its own. "killed": both put to the other and get from it
/// without end, until the communicator fails; "left": rank 1 aborts instead; "deregistered": rank 0
/// puts into a window that rank 1 has no more; "bad0" to "bad3": a kernel of rank 0 asks for the
/// impossible. Prints the failure, and that the kernel has ended without an abort. "aborted": a
/// kernel waits until the abort flag is raised. "stopped": rank 0 stops rank 1, and aborts with its
/// queue full.
int fail_by_kernels(LocalRanks& ranks, int rank, const std::string& what);

/// One of three ranks, each on a machine of its own. Rank 0 stops the process of rank 2, puts more
/// to it than the network holds, and exchanges signals, puts and gets with rank 1 meanwhile. False,
/// and a line, when something was wrong.
bool go_on_beside_a_peer_that_is_stopped(LocalRanks& ranks, int rank);

/// One of two ranks, each on a machine of its own: a signal comes behind the gets before it, and
/// ncclCommDestroy behind the last operations. Destroys the communicator. False, and a line, when
/// something was wrong.
bool keep_the_order(LocalRanks& ranks, int rank);

}  // namespace niccolite::test
