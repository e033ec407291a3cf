// What the roles of multi-process tests have in common: ids as text, and one process's ranks of a
// communicator.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace niccolite::test {

/// Ends the role with a message that names call and cause; for roles, which are not tests.
#define REQUIRE_NCCL(call)                                                           \
  do {                                                                               \
    const ncclResult_t required = call;                                              \
    if (required != ncclSuccess) {                                                   \
      std::printf("FAILED %s: %d %s\n", #call, required, ncclGetLastError(nullptr)); \
      std::exit(10 + static_cast<int>(required));                                    \
    }                                                                                \
  } while (false)
#define REQUIRE_CUDA(call)                                                 \
  do {                                                                     \
    if (const cudaError_t required = call; required != cudaSuccess) {      \
      std::printf("FAILED %s: %s\n", #call, cudaGetErrorString(required)); \
      std::exit(30);                                                       \
    }                                                                      \
  } while (false)

std::string to_text(const ncclUniqueId& id);
ncclUniqueId to_id(const std::string& text);

/// `count` ranks: `first`, first + stride, ..., on the devices of the same numbers.
class LocalRanks {
 public:
  LocalRanks(const ncclUniqueId& id, int nranks, int first, int count, int stride = 1);
  void destroy();
  void abort();
  /// The same for what is not a communicator.
  void free_all();

  int count() const { return static_cast<int>(comms.size()); }
  /// One all-reduce of `count` floats over all ranks, the result checked. False (and a line) when
  /// it is wrong.
  bool all_reduce(size_t count);
  /// Queues an all-reduce whose peers may never come.
  ncclResult_t start(size_t count);
  /// Queues another one, of what the buffers have; after start() of as many.
  ncclResult_t queue(size_t count);
  /// Waits for the streams, or for a failure; what the communicators say then.
  ncclResult_t finish();
  /// Has the stream of the i-th rank work that is not done?
  bool is_waiting(size_t i = 0) const;

  std::vector<ncclComm_t> comms;
  std::vector<cudaStream_t> streams;

 private:
  void end(ncclResult_t (*end_one)(ncclComm_t));

  int rank_at(size_t i) const { return first_ + static_cast<int>(i) * stride_; }

  int nranks_;
  int first_;
  int stride_;
  std::vector<float*> buffers_;
  size_t capacity_ = 0;
};

}  // namespace niccolite::test
