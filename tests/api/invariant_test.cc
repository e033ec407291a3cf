// NICCOLITE_INVARIANT=1: results depend on the inputs alone. Whatever the algorithm, protocol,
// number of channels, size, place, stream or graph, each element is the reduction in ascending
// order of ranks, in float, rounded once. (Processes: tests/multi_process/invariant_test.cc.)
#include "tests/api/invariant.h"

#include <cstdlib>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

// Before the library reads its variables.
const int kIsSet = setenv("NICCOLITE_INVARIANT", "1", 1);

/// All ranks in this process; channels of 0: the library's choice.
class Ranks {
 public:
  Ranks(int nranks, int channels) : ranks_(static_cast<size_t>(nranks)) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (channels > 0) config.minCTAs = config.maxCTAs = channels;
    ncclUniqueId id;
    EXPECT_NCCL(ncclGetUniqueId(&id));
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < nranks; ++rank) {
      invariant::Rank& own = ranks_[static_cast<size_t>(rank)];
      own.number = own.device = rank;
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_CUDA(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking));
      EXPECT_NCCL(ncclCommInitRankConfig(&own.comm, nranks, id, rank, &config));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  Ranks(const Ranks&) = delete;
  ~Ranks() {
    for (const invariant::Rank& rank : ranks_) EXPECT_NCCL(ncclCommDestroy(rank.comm));
    for (const invariant::Rank& rank : ranks_) EXPECT_CUDA(cudaStreamDestroy(rank.stream));
  }
  std::span<const invariant::Rank> all() const { return ranks_; }

 private:
  std::vector<invariant::Rank> ranks_;
};

TEST(Invariant, OneValueGivesOneResultWhateverCarriesIt) {
  ASSERT_EQ(kIsSet, 0);
  size_t seed = 0;
  for (const int nranks : {2, 5})
    for (const int channels : {0, 1, 4})
      for (const char* const algorithm : {"", "one_shot,direct", "two_shot_plain,direct"})
        for (const char* const protocol : {"", "LL", "Simple"}) {
          SCOPED_TRACE(testing::Message()
                       << nranks << " ranks, " << channels << " channels, NCCL_ALGO=" << algorithm
                       << " NCCL_PROTO=" << protocol);
          setenv("NCCL_ALGO", algorithm, 1);
          // One-shot of more than two ranks is for LL alone.
          setenv("NCCL_PROTO", *algorithm == 'o' && nranks > 2 ? "LL" : protocol, 1);
          const Ranks ranks(nranks, channels);
          ASSERT_EQ(invariant::perform_all(ranks.all(), nranks, seed++), "");
        }
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
}

// The test above can fail: another order of the ranks gives other sums, of every type.
TEST(Invariant, ValuesTellOrdersApart) {
  constexpr int kRanks = 5;
  constexpr size_t kCount = 1000;
  for (const ncclDataType_t type : invariant::kTypes) {
    const Bytes sums = invariant::elements(type, -1, kRanks, 0, kCount);
    const size_t different = with_type(type, [&](auto element) {
      using E = decltype(element);
      size_t count = 0;
      for (size_t i = 0; i < kCount; ++i) {
        typename E::Accumulator sum = 0;
        for (int rank = kRanks; rank-- > 0;) {
          const auto input =
              static_cast<typename E::Accumulator>(invariant::value_of(type, rank, i));
          sum += E::widen(E::narrow(input));
          sum = E::widen(E::narrow(sum));  // as partial sums that travel are
        }
        const auto stored = E::narrow(sum);
        count += std::memcmp(&stored, &sums[i * sizeof stored], sizeof stored) != 0 ? 1 : 0;
      }
      return count;
    });
    EXPECT_GT(different, kCount / 20) << "type " << type;
  }
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
