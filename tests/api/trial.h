// Trial: one collective or message with buffers of its own on every rank, inputs that depend on
// rank and index, and the check of every byte against a plain formulation of what NCCL's guide
// defines.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {

enum class Kind {
  AllReduce,
  Reduce,
  Broadcast,
  Bcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Gather,
  Scatter,
  Message,
};
inline constexpr Kind kCollectives[] = {Kind::AllReduce, Kind::Reduce,    Kind::Broadcast,
                                        Kind::Bcast,     Kind::AllGather, Kind::ReduceScatter,
                                        Kind::AllToAll,  Kind::Gather,    Kind::Scatter};
const char* name_of(Kind kind);
bool reduces(Kind kind);
bool has_root(Kind kind);

struct Operation {
  Kind kind = Kind::AllReduce;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  size_t count = 1;         // as the call takes it
  int root = 0;             // of a message: the sender
  int receiver = 0;         // of a message
  bool in_place = false;    // where the call may be
  size_t misalignment = 0;  // bytes that both buffers are off; a multiple of the element
  size_t salt = 0;          // makes inputs of equal operations differ
};
std::ostream& operator<<(std::ostream& out, const Operation& operation);

class Trial {
 public:
  /// `bytes` of memory of the rank's for a buffer, which outlive the trial; null: it gets its own.
  using Place = std::function<void*(int rank, size_t bytes)>;
  /// Allocates and fills the buffers of all ranks.
  Trial(const Operation& operation, int nranks, const Place& place = nullptr);

  const Operation& operation() const { return operation_; }
  /// Does `rank` make a call at all? (All do, of a collective.)
  bool takes_part(int rank) const;
  /// Makes the calls of `rank`; both, for a message to itself. `config`: of a collective; null:
  /// none.
  ncclResult_t call(int rank, ncclComm_t comm, cudaStream_t stream,
                    const ncclCollConfig_t* config = nullptr) const;
  /// Of `rank`; null: it has none.
  void* input(int rank) const { return buffers_[static_cast<size_t>(rank)].send; }
  void* output(int rank) const { return buffers_[static_cast<size_t>(rank)].receive; }
  /// Inputs as they were, outputs poisoned: for another run.
  void reset();
  /// After the streams are done: every byte of every rank is what it must be, and nothing else was
  /// written.
  testing::AssertionResult is_right() const;
  /// The same of one rank, where the others are in other processes.
  testing::AssertionResult is_right(int rank) const;

 private:
  struct Buffers {
    std::unique_ptr<DeviceBuffer> input;   // null: the call has none here, or is in place
    std::unique_ptr<DeviceBuffer> output;  // null: the call has none here
    unsigned char* send = nullptr;
    unsigned char* receive = nullptr;
  };
  ncclResult_t call_with(const ncclCollConfig_t* config, const Buffers& buffers, ncclComm_t comm,
                         cudaStream_t stream) const;
  size_t blocks_in(int rank) const;
  size_t blocks_out(int rank) const;
  bool is_in_place(int rank) const;
  double value(int rank, size_t block, size_t index) const;
  Bytes input_of(int rank) const;
  Bytes expected_of(int rank) const;
  Bytes contribution(int rank, size_t block) const;

  const Operation operation_;
  const int nranks_;
  std::vector<Buffers> buffers_;  // by rank
};

}  // namespace niccolite::test
