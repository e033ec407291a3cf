// Reach: which ranks' kernels can use the buffers of which other ranks' users, as both of them know
// it, and the ways between them.
#pragma once

#include <vector>

#include "transport/pair.h"

namespace niccolite::transport {

/// Of one rank, by peer.
struct Reach {
  std::vector<bool> out;           // this rank's kernels can access buffers of the peer's user
  std::vector<bool> in;            // the peer's kernels those of this rank's user
  bool is_whole = false;           // every rank's kernels those of all others' users
  std::vector<bool> windows{};     // both those of the other's user that lie in windows
  bool has_whole_windows = false;  // every rank's kernels those of all others
  std::vector<Pair> pairs{};       // empty: on one machine, with peer access
};

}  // namespace niccolite::transport
