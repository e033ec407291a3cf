// Every collective, and messages, among more ranks than any algorithm connects to each other: 300
// and 1,024 virtual GPUs of one process.
#include <cuda_runtime.h>

#include <cstdlib>

#include "tests/api/trial.h"

namespace niccolite::test {
namespace {

constexpr int kMostRanks = 1024;

/// Before anything asks for devices, and whatever the environment says.
[[maybe_unused]] const int kDevices =
    setenv("NICCOLITE_DEVICES", ("virtual:" + std::to_string(kMostRanks)).c_str(), 1);

void check(Cluster& cluster, const std::vector<Operation>& operations) {
  std::vector<std::unique_ptr<Trial>> trials;
  for (const Operation& operation : operations)
    trials.push_back(std::make_unique<Trial>(operation, cluster.nranks()));
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    for (const auto& trial : trials) {
      if (!trial->takes_part(rank)) continue;
      ASSERT_NCCL(trial->call(rank, cluster.comm(rank), cluster.stream(rank)));
    }
  }
  ASSERT_NCCL(ncclGroupEnd());
  cluster.synchronize();
  for (const auto& trial : trials) ASSERT_TRUE(trial->is_right()) << cluster.nranks() << " ranks";
}

class ManyRanks : public testing::TestWithParam<int> {};

TEST_P(ManyRanks, MakeEveryCollectiveAndExchangeMessages) {
  const int nranks = GetParam();
  Cluster cluster(nranks);
  for (const Kind kind : kCollectives) {
    if (kind == Kind::Bcast) continue;  // another name of Broadcast
    ASSERT_NO_FATAL_FAILURE(check(cluster, {{kind, ncclFloat, ncclSum, 3, nranks / 3}}));
  }
  // With neighbours, near and far.
  std::vector<Operation> messages;
  for (const int distance : {1, nranks / 2})
    for (int rank = 0; rank < nranks; ++rank)
      messages.push_back({.kind = Kind::Message,
                          .count = 5 + static_cast<size_t>(rank % 7),
                          .root = rank,
                          .receiver = (rank + distance) % nranks});
  ASSERT_NO_FATAL_FAILURE(check(cluster, messages));
  // Of one rank with all others, in both directions, of more bytes than slots have.
  messages.clear();
  constexpr int kHub = 7;
  for (int rank = 0; rank < nranks; ++rank) {
    if (rank == kHub) continue;
    messages.push_back({.kind = Kind::Message, .count = 700, .root = rank, .receiver = kHub});
    messages.push_back({.kind = Kind::Message, .count = 700, .root = kHub, .receiver = rank});
  }
  ASSERT_NO_FATAL_FAILURE(check(cluster, messages));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ManyRanks, testing::Values(300, kMostRanks),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace niccolite::test
