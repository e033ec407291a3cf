// Ranks of one process that go by a multicast team (NVLS) alone, and operations of theirs whose
// every byte is checked. For values that are exact in every order: a team reduces in the order in
// which the GPUs joined.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {

// Before the library reads its variables.
inline const int kIsSet = setenv("NICCOLITE_DEVICES", "virtual:16", 1);

/// Communicators that are made meanwhile have these algorithms and protocols.
class ScopedAlgorithms {
 public:
  explicit ScopedAlgorithms(const char* algorithms, const char* protocols = nullptr) {
    setenv("NCCL_ALGO", algorithms, 1);
    if (protocols != nullptr) setenv("NCCL_PROTO", protocols, 1);
  }
  ~ScopedAlgorithms() {
    unsetenv("NCCL_ALGO");
    unsetenv("NCCL_PROTO");
  }
  ScopedAlgorithms(const ScopedAlgorithms&) = delete;
};

/// A cluster whose ranks go by a team alone.
class TeamCluster {
 public:
  explicit TeamCluster(int nranks, const char* algorithms = "NVLS",
                       const char* protocols = nullptr) {
    EXPECT_EQ(kIsSet, 0);
    const ScopedAlgorithms by_team(algorithms, protocols);
    cluster_.emplace(nranks);
  }
  Cluster& operator*() { return *cluster_; }

 private:
  std::optional<Cluster> cluster_;
};

enum class Call { AllReduce, Reduce, ReduceScatter, AllGather, Broadcast };
inline constexpr Call kCalls[] = {Call::AllReduce, Call::Reduce, Call::ReduceScatter,
                                  Call::AllGather, Call::Broadcast};

struct Case {
  Call call = Call::AllReduce;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  size_t count = 1;
  bool is_in_place = false;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "call " << static_cast<int>(c.call) << " type " << c.type << " op " << c.op
             << " count " << c.count << (c.is_in_place ? " in place" : "");
}

inline Bytes part(const Bytes& whole, size_t number, size_t bytes) {
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(number * bytes);
  return {first, first + static_cast<std::ptrdiff_t>(bytes)};
}

/// Bytes of memory that check() takes on each rank.
inline size_t needed(const Case& c, int nranks) {
  const size_t bytes = c.count * bytes_of(c.type) * static_cast<size_t>(nranks);
  return DeviceBuffer::needed(2 * bytes, 0);
}

/// Runs one operation, whose root is the last rank, and checks every byte of every rank. `memory`:
/// where the buffers lie, by rank, needed() bytes each; none: in memory of their own.
inline void check(Cluster& cluster, const Case& c, const std::vector<void*>& memory = {}) {
  SCOPED_TRACE(testing::Message() << cluster.nranks() << " ranks, " << c);
  const int n = cluster.nranks(), root = n - 1;
  const auto ranks = static_cast<size_t>(n);
  const size_t bytes = c.count * bytes_of(c.type);
  const bool gathers = c.call == Call::AllGather, scatters = c.call == Call::ReduceScatter;
  const size_t sent = scatters ? bytes * ranks : bytes, received = gathers ? bytes * ranks : bytes;
  std::vector<DeviceBuffer> buffers;
  std::vector<unsigned char*> inputs, outputs;
  for (int rank = 0; rank < n; ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (memory.empty())
      buffers.emplace_back(rank, std::max(sent, received) * 2);
    else
      buffers.emplace_back(rank, std::max(sent, received) * 2, 0, memory[at]);
    unsigned char* const base = buffers.back().data();
    const size_t own = static_cast<size_t>(rank) * bytes;
    inputs.push_back(c.is_in_place && gathers ? base + own : base);
    outputs.push_back(!c.is_in_place ? base + std::max(sent, received)
                      : scatters     ? base + own
                                     : base);
    const Bytes from = input(c.type, c.op, rank, sent / bytes_of(c.type), n);
    EXPECT_CUDA(cudaMemcpy(inputs.back(), from.data(), from.size(), cudaMemcpyHostToDevice));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const ncclComm_t comm = cluster.comm(rank);
    const cudaStream_t stream = cluster.stream(rank);
    switch (c.call) {
      case Call::AllReduce:
        ASSERT_NCCL(ncclAllReduce(inputs[at], outputs[at], c.count, c.type, c.op, comm, stream));
        break;
      case Call::Reduce:
        ASSERT_NCCL(ncclReduce(inputs[at], outputs[at], c.count, c.type, c.op, root, comm, stream));
        break;
      case Call::ReduceScatter:
        ASSERT_NCCL(
            ncclReduceScatter(inputs[at], outputs[at], c.count, c.type, c.op, comm, stream));
        break;
      case Call::AllGather:
        ASSERT_NCCL(ncclAllGather(inputs[at], outputs[at], c.count, c.type, comm, stream));
        break;
      case Call::Broadcast:
        ASSERT_NCCL(ncclBroadcast(inputs[at], outputs[at], c.count, c.type, root, comm, stream));
        break;
    }
  }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  const Bytes sums = expected(c.type, c.op, sent / bytes_of(c.type), n);
  for (int rank = 0; rank < n; ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (c.call == Call::Reduce && rank != root) continue;
    Bytes want = sums;
    if (scatters) want = part(sums, at, bytes);
    if (c.call == Call::Broadcast) want = input(c.type, c.op, root, c.count, n);
    if (gathers) {
      want.clear();
      for (int from = 0; from < n; ++from) {
        const Bytes block = input(c.type, c.op, from, c.count, n);
        want.insert(want.end(), block.begin(), block.end());
      }
    }
    Bytes got(want.size());
    EXPECT_CUDA(cudaMemcpy(got.data(), outputs[at], got.size(), cudaMemcpyDeviceToHost));
    const auto first = std::mismatch(got.begin(), got.end(), want.begin()).first;
    ASSERT_EQ(first, got.end()) << "rank " << rank << " differs from byte " << first - got.begin();
    ASSERT_TRUE(buffers[at].guards_are_intact()) << "rank " << rank << " wrote outside its output";
  }
}

}  // namespace niccolite::test
