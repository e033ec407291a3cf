// Operations between whose kernels and users' memory a LooseNetwork stands, whatever runs the
// kernels: virtual GPUs (user_memory_test.cc), or the kernels' source for real
// ones (tests/device/emulated_places_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

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

}  // namespace niccolite::transport::net
