// The state of a child made by fork(): it has this process's memory and its descriptors, but
// only one of its threads: communicators and GPUs are of no use there. A child that held a
// connection open would also hide its parent's death from the peers.
// Thread safety: any thread. The work in the child calls async-signal-safe functions only.
#pragma once

#include <atomic>

namespace niccolite::forks {

/// Declares that this process now has objects that a child cannot use: later children are orphans.
void make_orphans();
extern std::atomic<bool> orphan;
/// True in a child made by fork() after make_orphans(), and in its children.
inline bool is_orphan() { return orphan.load(std::memory_order_relaxed); }

/// Children get /dev/null in the place of the descriptor `fd`: the connection ends with this
/// process, and the child can do nothing to it. The number stays taken in the child, because owners
/// that it has inherited may close it.
void withhold(int fd);
/// Ends withhold(), before `fd` is closed.
void forget(int fd);

}  // namespace niccolite::forks
