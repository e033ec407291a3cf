// Operations between whose kernels and users' memory a LooseNetwork stands, whatever runs the
// kernels: virtual GPUs (user_memory_test.cc), or the kernels' source for real
// ones (tests/device/emulated_places_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/form.h"
#include "schedule/schedule.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/transport/loose_network.h"

namespace niccolite::transport::net {

struct CarriedOperations {
  uint32_t seeds;
  uint32_t slot_bytes;
  uint64_t chunks;  // of a block, and some elements more
  executor::DataType type = executor::DataType::Float32;
  bool begin_anywhere = false;  // buffers
};

/// Carries out the schedule, several times one after the other, in place and not, and expects right
/// results, and chunks that go from and to users' memory. `run(cluster, launches, network, seed)`
/// runs the launches of all ranks; true, or a success, if they end.
template <typename Run>
void carry_out(const schedule::Schedule& schedule, const CarriedOperations& of, Run&& run) {
  uint64_t used = 0;
  for (uint32_t seed = 1; seed <= of.seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const executor::FifoShape shape{
        .channels = 1 + seed % 2, .depth = 1u << (1 + seed % 2), .slot_bytes = of.slot_bytes};
    executor::host::Cluster cluster(schedule, executor::Protocol::Simple, shape);
    cluster.open_ranks = seed % 3 == 0 ? ~0u : 0;
    // The last part of some chunks is too small to stay where it is.
    LooseNetwork network(shape, seed % 4 == 0 ? 100 : 1, seed);
    const auto element = static_cast<uint64_t>(executor::size_of(of.type));
    const uint64_t full = schedule::cuts_one_buffer(schedule.collective)
                              ? of.slot_bytes / element * static_cast<uint64_t>(schedule.nblocks)
                              : of.slot_bytes / element;
    for (uint16_t turn = 1; turn <= 2; ++turn) {
      const uint64_t count = of.chunks * full + seed;
      const executor::Reduction reduction =
          seed % 5 == 0 && schedule::reduces(schedule.collective) && executor::is_floating(of.type)
              ? executor::Reduction{.op = executor::ReduceOp::Sum, .input_scale = 0.5}
              : executor::Reduction{};
      executor::host::OperandOptions options{.is_in_place = (seed / 2 + turn) % 2 == 0,
                                             .reduction = reduction};
      if (of.begin_anywhere) options.starts = {seed % 5, (seed + 1) % 7, turn};
      const executor::host::Operands operands(schedule, of.type, {count}, options);
      std::vector<executor::Launch> launches =
          cluster.launches({.count = count,
                            .type = of.type,
                            .reduction = reduction,
                            .tag = static_cast<uint16_t>(16 * turn)},
                           operands.addresses());
      // Each on its own, or two and two.
      const int ranks_each = seed % 3 == 0 && schedule.nranks > 2 ? 2 : 1;
      network.replace_ports(launches, [&](int rank) { return rank / ranks_each; });
      ASSERT_TRUE(run(cluster, std::move(launches), network, 100 * seed + turn));
      network.carry_all();
      ASSERT_NO_FATAL_FAILURE(operands.check());
    }
    used += network.from_users + network.to_users;
    EXPECT_LE(network.from_users, network.bytes);
  }
  EXPECT_GT(used, 0u) << "all of it went through slots";
}

/// One all-reduce in place, of several chunks of a block.
struct RingInPlace {
  RingInPlace(int ranks, uint32_t slot_bytes)
      : nranks(ranks),
        schedule(
            planner::find_form(schedule::Collective::AllReduce, "ring")->build(ranks, {}).take()),
        shape{.channels = 1, .depth = 4, .slot_bytes = slot_bytes},
        cluster(schedule, executor::Protocol::Simple, shape),
        network(shape, /*least_bytes=*/1, /*seed=*/1),
        count(12 * slot_bytes * static_cast<uint64_t>(ranks) / sizeof(float)),
        operands(schedule, executor::DataType::Float32, {count}, {.is_in_place = true}),
        launches(cluster.launches({.count = count, .type = executor::DataType::Float32, .tag = 16},
                                  operands.addresses())) {
    network.replace_ports(launches, [](int rank) { return rank; });
  }
  /// After the launches: results are right, and all was sent from users' memory but for partial
  /// sums, which are nowhere but in slots.
  void check() {
    network.carry_all();
    ASSERT_NO_FATAL_FAILURE(operands.check());
    const uint64_t partial = static_cast<uint64_t>(nranks - 2) * nranks * count / nranks;
    EXPECT_EQ(network.from_users, network.bytes - partial * sizeof(float)) << nranks;
  }

  int nranks;
  schedule::Schedule schedule;
  executor::FifoShape shape;
  executor::host::Cluster cluster;
  LooseNetwork network;
  uint64_t count;
  executor::host::Operands operands;
  std::vector<executor::Launch> launches;
};

/// Inputs and outputs of bytes for an all-gather among three ranks.
struct Gathering {
  explicit Gathering(size_t bytes) {
    for (int rank = 0; rank < 3; ++rank) {
      inputs.emplace_back(bytes, std::byte{1});
      outputs.emplace_back(3 * bytes);
    }
    for (size_t rank = 0; rank < 3; ++rank) {
      buffers.inputs.push_back(inputs[rank].data());
      buffers.outputs.push_back(outputs[rank].data());
    }
  }
  /// Their users have them again: expects that the network neither reads nor stores there.
  void expect_let_go(LooseNetwork& network) {
    for (auto* const all : {&inputs, &outputs})
      for (std::vector<std::byte>& bytes : *all) std::ranges::fill(bytes, std::byte{0xee});
    network.from_users = network.to_users = 0;
    network.carry_all();
    EXPECT_EQ(network.from_users + network.to_users, 0u);
    for (auto* const all : {&inputs, &outputs})
      for (const std::vector<std::byte>& bytes : *all)
        ASSERT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xee}; }));
  }
  std::vector<std::vector<std::byte>> inputs, outputs;
  executor::host::OperationBuffers buffers;
};

}  // namespace niccolite::transport::net
