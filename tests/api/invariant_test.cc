// NICCOLITE_INVARIANT=1: results depend on the inputs alone. Whatever the algorithm, protocol,
// number of channels, size and place, each element is the fold in ascending order of ranks, in
// float, rounded once.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

// Before the library reads its variables.
const int kIsSet = setenv("NICCOLITE_INVARIANT", "1", 1);

constexpr size_t kMost = 40'000;

/// Element `i` of a rank's input: of very different sizes, so that every other order gives another
/// sum.
float value_of(int rank, size_t i) {
  const auto mixed =
      static_cast<uint32_t>((i + 1) * 2654435761u + static_cast<size_t>(rank) * 40503u * (i + 7));
  const float mantissa = static_cast<float>(mixed >> 8) / 16777216.f - 0.5f;
  return std::ldexp(mantissa, static_cast<int>(mixed % 23));
}

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bfloat16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

using Bytes = std::vector<unsigned char>;

void put(Bytes& bytes, ncclDataType_t type, size_t i, float value) {
  if (type == ncclFloat32) {
    std::memcpy(&bytes[i * 4], &value, 4);
  } else {
    const uint16_t narrow = to_bfloat16(value);
    std::memcpy(&bytes[i * 2], &narrow, 2);
  }
}
float contribution(ncclDataType_t type, int rank, size_t i) {
  const float value = value_of(rank, i);
  return type == ncclFloat32 ? value : from_bfloat16(to_bfloat16(value));
}
/// Elements `first` to `first` + `count` of the input of `rank`, or (-1) of the sum of all.
Bytes elements(ncclDataType_t type, int rank, int nranks, size_t first, size_t count) {
  Bytes bytes(count * (type == ncclFloat32 ? 4 : 2));
  for (size_t i = 0; i < count; ++i) {
    float sum = contribution(type, std::max(rank, 0), first + i);
    for (int other = 1; rank < 0 && other < nranks; ++other)
      sum += contribution(type, other, first + i);
    put(bytes, type, i, sum);
  }
  return bytes;
}

struct Piece {
  ncclDataType_t type;
  size_t first, count;  // of all elements
  size_t misalignment;  // elements
};

enum class Call { AllReduce, Reduce, ReduceScatter };

void check(Cluster& cluster, Call call, const Piece& run) {
  const int n = cluster.nranks();
  const size_t size = run.type == ncclFloat32 ? 4 : 2;
  const size_t whole = call == Call::ReduceScatter ? run.count * static_cast<size_t>(n) : run.count;
  std::vector<DeviceBuffer> inputs, outputs;
  for (int rank = 0; rank < n; ++rank) {
    inputs.emplace_back(rank, whole * size, run.misalignment * size);
    inputs.back().write(elements(run.type, rank, n, run.first, whole));
    outputs.emplace_back(rank, run.count * size, run.misalignment * size);
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank) {
    const void* const from = inputs[static_cast<size_t>(rank)].data();
    void* const to = outputs[static_cast<size_t>(rank)].data();
    const auto comm = cluster.comm(rank);
    const auto stream = cluster.stream(rank);
    if (call == Call::AllReduce)
      ASSERT_NCCL(ncclAllReduce(from, to, run.count, run.type, ncclSum, comm, stream));
    else if (call == Call::Reduce)
      ASSERT_NCCL(ncclReduce(from, to, run.count, run.type, ncclSum, n - 1, comm, stream));
    else
      ASSERT_NCCL(ncclReduceScatter(from, to, run.count, run.type, ncclSum, comm, stream));
  }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (int rank = 0; rank < n; ++rank) {
    if (call == Call::Reduce && rank != n - 1) continue;
    const size_t first =
        run.first + (call == Call::ReduceScatter ? run.count * static_cast<size_t>(rank) : 0);
    ASSERT_EQ(outputs[static_cast<size_t>(rank)].read(),
              elements(run.type, -1, n, first, run.count))
        << "rank " << rank << " of " << n << ", " << run.count << " elements from " << run.first;
  }
}

TEST(Invariant, OneValueGivesOneResultWhateverCarriesIt) {
  ASSERT_EQ(kIsSet, 0);
  for (const int nranks : {2, 5})
    for (const char* const algorithm : {"", "one_shot,direct", "two_shot_plain,direct"})
      for (const char* const protocol : {"", "LL", "Simple"}) {
        SCOPED_TRACE(testing::Message()
                     << nranks << " ranks, NCCL_ALGO=" << algorithm << " NCCL_PROTO=" << protocol);
        setenv("NCCL_ALGO", algorithm, 1);
        // One-shot of more than two ranks is for LL alone.
        setenv("NCCL_PROTO", *algorithm == 'o' && nranks > 2 ? "LL" : protocol, 1);
        Cluster cluster(nranks);
        for (const Call call : {Call::AllReduce, Call::Reduce, Call::ReduceScatter})
          for (const ncclDataType_t type : {ncclFloat32, ncclBfloat16})
            for (const Piece& run :
                 {Piece{type, 0, 1, 0}, Piece{type, 17, 1000, 1}, Piece{type, 3, kMost / 5, 0}})
              check(cluster, call, run);
      }
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
}

TEST(Invariant, SaysWhatItLeavesOut) {
  setenv("NCCL_ALGO", "ring", 1);
  Cluster cluster(3);
  unsetenv("NCCL_ALGO");
  DeviceBuffer buffer(0, 64);
  EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 4, ncclFloat32, ncclSum, cluster.comm(0),
                          cluster.stream(0)),
            ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("NICCOLITE_INVARIANT and NCCL_ALGO"),
            std::string::npos)
      << ncclGetLastError(nullptr);
  cluster.abort();
}

}  // namespace
}  // namespace niccolite::test
