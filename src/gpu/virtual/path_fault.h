// PathFault: faults of paths between virtual GPUs, for tests of code that must not trust the paths
// (NICCOLITE_VIRTUAL_FAULT). No error tells of them, as with broken peer access of real GPUs.
#pragma once

namespace niccolite::gpu::virtual_ {

enum class PathFault : unsigned char {
  None,
  Lost,   // stores to memory of another GPU, or of another process, do not arrive
  Late,   // copies to it arrive a second later
  Zeros,  // copies from it bring zeros
};
PathFault path_fault();

/// MulticastFault: how a multicast team fails, for tests.
enum class MulticastFault : unsigned char {
  None,
  Unbound,       // binding memory fails, as without a fabric manager
  UnboundLater,  // binding fails behind the beginning of a team's range: a team works, and no more
  Hung,          // binding memory does not return for a minute
  Deaf,          // stores do not reach the team's last GPU
};
MulticastFault multicast_fault();

}  // namespace niccolite::gpu::virtual_
