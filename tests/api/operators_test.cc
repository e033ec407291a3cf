// Operations made at run time: ncclRedOpCreatePreMulSum and ncclRedOpDestroy.

#include <string>

#include "tests/api/cluster.h"
#include "tests/api/values.h"

namespace niccolite::test {
namespace {

TEST(PreMulSum, ScalesEachRanksContributionByItsOwnScalar) {
  for (int nranks : {1, 2, 5}) {
    Cluster cluster(nranks);
    for (ncclDataType_t type :
         {ncclFloat, ncclInt32, ncclHalf, ncclBfloat16, ncclDouble, ncclUint8})
      for (ncclScalarResidence_t residence : {ncclScalarHostImmediate, ncclScalarDevice})
        for (size_t count : {size_t{3}, size_t{20'011}}) {
          std::vector<DeviceBuffer> buffers, scalars;
          std::vector<ncclRedOp_t> ops(static_cast<size_t>(nranks));
          std::vector<double> want(count, 0);
          for (int rank = 0; rank < nranks; ++rank) {
            const double scalar = rank % 3 + 1;
            std::vector<double> values(count);
            for (size_t i = 0; i < count; ++i) {
              values[i] = static_cast<double>((i + static_cast<size_t>(rank)) % 5);
              want[i] += scalar * values[i];
            }
            buffers.emplace_back(rank, count * bytes_of(type)).write(encode(type, values));
            Bytes bytes = encode(type, {scalar});
            scalars.emplace_back(rank, bytes.size()).write(bytes);
            void* pointer = bytes.data();
            if (residence == ncclScalarDevice) pointer = scalars.back().data();
            ASSERT_NCCL(ncclRedOpCreatePreMulSum(&ops[static_cast<size_t>(rank)], pointer, type,
                                                 residence, cluster.comm(rank)));
          }
          ASSERT_NCCL(ncclGroupStart());
          for (int rank = 0; rank < nranks; ++rank) {
            const auto i = static_cast<size_t>(rank);
            ASSERT_NCCL(ncclAllReduce(buffers[i].data(), buffers[i].data(), count, type, ops[i],
                                      cluster.comm(rank), cluster.stream(rank)));
            // The group keeps what it needs of the operation.
            ASSERT_NCCL(ncclRedOpDestroy(ops[i], cluster.comm(rank)));
          }
          ASSERT_NCCL(ncclGroupEnd());
          cluster.synchronize();
          for (const DeviceBuffer& buffer : buffers)
            ASSERT_EQ(buffer.read(), encode(type, want))
                << nranks << " ranks, type " << type << " residence " << residence << " count "
                << count;
        }
  }
}

TEST(PreMulSum, OfSomeRanksEqualScalarsInOneGroupIsNotJoined) {
  // Rank 0's two scalars are equal and rank 1's are not: both must come to the same launches.
  constexpr int kRanks = 2;
  constexpr size_t kCount = 100;
  Cluster cluster(kRanks);
  const float scalars[kRanks][2] = {{2, 2}, {1, 3}};
  std::vector<DeviceBuffer> buffers;  // [rank][operation]
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank)
    for (float scalar : scalars[rank]) {
      ncclRedOp_t op = ncclSum;
      ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate,
                                           cluster.comm(rank)));
      buffers.emplace_back(rank, kCount * 4);
      buffers.back().write(encode(ncclFloat, std::vector<double>(kCount, rank + 1)));
      ASSERT_NCCL(ncclAllReduce(buffers.back().data(), buffers.back().data(), kCount, ncclFloat, op,
                                cluster.comm(rank), cluster.stream(rank)));
    }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_EQ(buffers[i].read(),
              encode(ncclFloat, std::vector<double>(kCount, i % 2 == 0 ? 2 + 2 : 2 + 6)));
}

TEST(PreMulSum, BelongsToOneCommunicatorAndOneType) {
  Cluster cluster(2);
  DeviceBuffer buffer(0, 64);
  float scalar = 2;
  ncclRedOp_t op = ncclSum;
  const auto all_reduce = [&](ncclDataType_t type, int rank) {
    return ncclAllReduce(buffer.data(), buffer.data(), 4, type, op, cluster.comm(rank),
                         cluster.stream(rank));
  };
  ASSERT_NCCL(
      ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, cluster.comm(0)));
  EXPECT_EQ(all_reduce(ncclDouble, 0), ncclInvalidArgument);
  EXPECT_EQ(all_reduce(ncclFloat, 1), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpDestroy(op, cluster.comm(1)), ncclInvalidArgument);
  EXPECT_NCCL(ncclRedOpDestroy(op, cluster.comm(0)));
  EXPECT_EQ(ncclRedOpDestroy(op, cluster.comm(0)), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpDestroy(ncclSum, cluster.comm(0)), ncclInvalidArgument);
  EXPECT_EQ(all_reduce(ncclFloat, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(nullptr, &scalar, ncclFloat, ncclScalarHostImmediate,
                                     cluster.comm(0)),
            ncclInvalidArgument);
  EXPECT_EQ(
      ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat, ncclScalarHostImmediate, cluster.comm(0)),
      ncclInvalidArgument);
}

}  // namespace
}  // namespace niccolite::test
