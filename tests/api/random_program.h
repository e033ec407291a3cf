// Random programs of groups: what a user's program could do with one or two communicators over the
// same ranks, generated from a seed, so that every process of a job generates the same one. And
// what runs them: on the ranks of this process, by one thread or a thread per rank, live or as
// graphs, with every byte checked.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "tests/api/trial.h"

namespace niccolite::test {

struct RandomCall {
  Operation operation;
  size_t communicator;  // of two
  size_t stream;        // of two
};
struct RandomGroup {
  std::vector<RandomCall> calls;
  bool is_open;  // in ncclGroupStart/End; else call by call, where that cannot deadlock
};
struct RandomProgram {
  uint64_t seed;
  int nranks;
  bool thread_per_rank;
  bool as_graph;
  std::vector<RandomGroup> groups;
};
std::ostream& operator<<(std::ostream& out, const RandomProgram& program);

/// For `nranks` ranks, or for one to five when it is 0.
RandomProgram generate(uint64_t seed, int nranks = 0);

/// The ranks of this process, with what they use: two communicators and two streams each.
struct Stage {
  int first_rank = 0;
  struct Rank {
    ncclComm_t comms[2];
    cudaStream_t streams[2];
  };
  std::vector<Rank> ranks;
};

/// Runs `program` on the ranks of `stage`; failures are gtest's.
void perform(const RandomProgram& program, const Stage& stage);

}  // namespace niccolite::test
