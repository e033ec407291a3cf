// Messages of a pair that take turns on its connection (executor::Turn), by the kernels' own source
// on the CPU: the interpreters of LL and LL128, and the kernel of messages, mixed among ranks.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "algorithms/point_to_point.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using algorithms::Envelope;
using executor::DataType;
using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::cuda::Specialisation;
using executor::host::Cluster;
using executor::host::Operands;
using executor::host::Part;

constexpr uint32_t kDepth = 4;
constexpr uint32_t kChannels = 2;
constexpr uint32_t kSlotBytes = 640;
constexpr uint32_t kLeastBytes = 32;  // of a channel, in Cluster

/// Where a message has both channels, in one step of each; or the first alone.
uint64_t draw_size(std::mt19937& random, Protocol protocol, bool has_both) {
  const uint64_t slot = data_bytes(protocol, kSlotBytes) / 16 * 16;
  return has_both ? 2 * kLeastBytes + random() % (2 * slot - 2 * kLeastBytes) + 1
                  : random() % (kLeastBytes + 1);
}

struct Pattern {
  int nranks;
  std::vector<Envelope> messages;
  bool has_form;  // few enough for the kernel of messages
};

class EmulatedTurns : public testing::TestWithParam<Protocol> {
 protected:
  /// All layers of `pattern` in one launch for each rank.
  void run_once(Cluster& cluster, const Pattern& pattern, uint32_t seed) {
    std::mt19937 random(seed);
    std::deque<Operands> operands;
    std::vector<Part> parts;
    for (size_t layer = 0; layer < kDepth; ++layer) {
      std::vector<uint64_t> counts;
      for (size_t m = 0; m < pattern.messages.size(); ++m)
        counts.push_back(draw_size(random, GetParam(), (m + seed) % 2 == 0));
      operands.emplace_back(cluster.schedule(layer), DataType::Uint8, counts,
                            executor::host::OperandOptions{.is_misaligned = seed % 3 == 0});
      parts.push_back({.schedule = layer,
                       .counts = counts,
                       .buffers = operands.back().addresses(),
                       .tag = static_cast<uint16_t>(16 * seed + layer)});
    }
    std::deque<KernelLaunch> kernels;
    std::vector<KernelLaunch*> pointers;
    for (Launch& launch : cluster.launches_in_turns(parts)) {
      launch.control_device = &cluster.control;
      const bool may_be_special = (seed + kernels.size()) % 3 != 0;
      auto kernel = executor::cuda::prepare(
          launch, may_be_special ? Specialisation::Allowed : Specialisation::Off);
      ASSERT_TRUE(kernel.is_ok()) << kernel.status().message();
      const bool is_special = may_be_special && pattern.has_form && GetParam() == Protocol::LL;
      EXPECT_EQ(kernel.value().kernel.variant == KernelVariant::Messages, is_special);
      kernels.push_back(std::move(kernel).take());
      pointers.push_back(&kernels.back());
    }
    ASSERT_TRUE(emulation::run(pointers, seed));
    for (const Operands& of_layer : operands) of_layer.check();
    EXPECT_TRUE(cluster.guards_intact());
    EXPECT_TRUE(cluster.counters_consistent());
    EXPECT_EQ(cluster.control.report, 0u);
  }
};

TEST_P(EmulatedTurns, BringAllMessagesOfALaunch) {
  const Pattern patterns[] = {{2, {{0, 1}, {1, 0}}, true},
                              {2, {{0, 1}, {1, 0}, {1, 1}}, true},
                              {3, {{0, 1}, {1, 0}, {1, 2}, {2, 1}}, true},
                              {9, {{0, 8}, {8, 0}, {0, 1}}, false}};
  for (const Pattern& pattern : patterns) {
    std::vector<schedule::Schedule> schedules;
    for (size_t layer = 0; layer < kDepth; ++layer)
      schedules.push_back(algorithms::point_to_point(pattern.nranks, pattern.messages).take());
    Cluster cluster(std::move(schedules), GetParam(), {kChannels, kDepth, kSlotBytes});
    for (uint32_t seed = 1; seed < 10; ++seed) {
      // Also across the place where flags begin anew.
      if (seed == 4) cluster.start_at((uint64_t{1} << 15) - 6);
      SCOPED_TRACE(testing::Message() << pattern.nranks << " ranks, seed " << seed);
      ASSERT_NO_FATAL_FAILURE(run_once(cluster, pattern, seed));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EmulatedTurns, testing::Values(Protocol::LL, Protocol::LL128),
                         [](const auto& protocol) { return std::string(name_of(protocol.param)); });

}  // namespace
}  // namespace niccolite::device_test
