// How the functions of a library, or groups of its sends and receives, carry out each collective:
// one rank's calls. Their meaning stands in collective.cc.
#pragma once

#include <nccl.h>

#include <cstddef>

#include "base/status.h"
#include "cli/perf/element.h"

namespace niccolite::perf {

class Library;

/// One rank's call, as the library gets it.
struct Invocation {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  size_t count = 0;  // of the whole data or of a block
  const ElementType* type = nullptr;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
  int rank = 0;
  int nranks = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool by_send_recv = false;  // even where the library has the collective

  size_t block_bytes() const { return count * type->bytes; }
  const std::byte* send_block(int index) const {
    return send + static_cast<size_t>(index) * block_bytes();
  }
  std::byte* receive_block(int index) const {
    return receive + static_cast<size_t>(index) * block_bytes();
  }
};

/// Each makes the calls of step `step`, which is 0 but for collectives of several groups.
Status call_all_reduce(const Library& nccl, const Invocation& call, int step);
Status call_all_gather(const Library& nccl, const Invocation& call, int step);
Status call_reduce_scatter(const Library& nccl, const Invocation& call, int step);
Status call_broadcast(const Library& nccl, const Invocation& call, int step);
Status call_reduce(const Library& nccl, const Invocation& call, int step);
Status call_alltoall(const Library& nccl, const Invocation& call, int step);
Status call_gather(const Library& nccl, const Invocation& call, int step);
Status call_scatter(const Library& nccl, const Invocation& call, int step);
Status call_sendrecv(const Library& nccl, const Invocation& call, int step);
Status call_hypercube(const Library& nccl, const Invocation& call, int step);
Status call_messages_8(const Library& nccl, const Invocation& call, int step);
Status call_messages_32(const Library& nccl, const Invocation& call, int step);
Status call_alltoallv(const Library& nccl, const Invocation& call, int step);

/// Returns the elements that `sender` has for `receiver` in alltoallv, of a block of `count`: none,
/// one, two or three thirds, so that some ranks have nothing for each other.
constexpr size_t uneven_share(size_t count, int sender, int receiver) {
  return count * static_cast<size_t>((2 * sender + receiver) % 4) / 3;
}

}  // namespace niccolite::perf
