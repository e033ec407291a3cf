// Reach: whether the kernels of one rank can use the buffers of another rank's user, and the way
// between the two. Both ranks of a pair have the same answer.
#pragma once

#include <vector>

#include "transport/pair.h"

namespace niccolite::transport {

/// The reach of one rank; vectors are by peer.
struct Reach {
  std::vector<bool> out;  // this rank's kernels can access buffers of the peer's user
  std::vector<bool> in;   // the peer's kernels can access buffers of this rank's user
  bool is_whole = false;  // every rank's kernels can access the buffers of all other ranks' users
  // both ranks' kernels can access the other user's buffers in windows
  std::vector<bool> windows{};
  bool has_whole_windows = false;  // every rank's kernels can access the windows of all other ranks
  std::vector<Pair> pairs{};       // empty: on one machine, with peer access
};

}  // namespace niccolite::transport
