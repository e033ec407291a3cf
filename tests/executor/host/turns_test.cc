// Messages of a pair that take turns on its connection, all in one launch: whatever the sizes, and
// however the two ends share them out among launches.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "algorithms/point_to_point.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::executor::host {
namespace {

using algorithms::Envelope;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;

constexpr uint32_t kDepth = 8;
constexpr uint32_t kChannels = 2;

FifoShape shape_of(Protocol protocol) {
  return {
      .channels = kChannels, .depth = kDepth, .slot_bytes = protocol == Protocol::LL ? 256u : 640u};
}

/// Launches one after the other, as a stream has them.
class Stream final : public Task {
 public:
  explicit Stream(Cluster::Tasks tasks) {
    for (auto& task : tasks) tasks_.push_back(std::move(task));
  }
  Progress step() override {
    if (tasks_.empty()) return Progress::Done;
    const Progress progress = tasks_.front()->step();
    if (progress != Progress::Done) return progress;
    tasks_.pop_front();
    return tasks_.empty() ? Progress::Done : Progress::Advanced;
  }

 private:
  std::deque<std::unique_ptr<Task>> tasks_;
};

/// A size of at most `steps` slots of each channel, and of `channels` channels.
uint64_t draw_size(std::mt19937& random, Protocol protocol, uint32_t steps, uint32_t channels) {
  const size_t slot = data_bytes(protocol, shape_of(protocol).slot_bytes);
  for (;;) {
    const uint64_t bytes = random() % (steps * kChannels * slot + 1);
    const Partition partition = make_block_partition(
        bytes, 1, 1, {.max_channels = kChannels, .slot_data_bytes = slot, .min_channel_bytes = 32});
    if (partition.channels == channels && partition.rounds <= steps) return bytes;
  }
}

/// Layers of messages with their data.
struct Layers {
  Layers(Cluster& cluster, Protocol protocol, uint32_t steps, uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t layer = 0; layer < kDepth / steps; ++layer) {
      std::vector<uint64_t> counts;
      // Those of a pair have as many channels.
      for (size_t m = 0; m < cluster.schedule(layer).messages.size(); ++m)
        counts.push_back(draw_size(random, protocol, steps, 1 + (m + seed) % kChannels));
      operands.emplace_back(cluster.schedule(layer), DataType::Uint8, counts,
                            OperandOptions{.is_misaligned = seed % 2 == 0});
      parts.push_back({.schedule = layer,
                       .counts = counts,
                       .buffers = operands.back().addresses(),
                       .tag = static_cast<uint16_t>(seed * 16 + layer)});
    }
  }
  void expect_right() const {
    for (const Operands& of_layer : operands) of_layer.check();
  }

  std::deque<Operands> operands;
  std::vector<Part> parts;
};

class Turns : public testing::TestWithParam<Protocol> {
 protected:
  static Cluster cluster_of(const std::vector<Envelope>& messages, int nranks, Protocol protocol,
                            size_t layers) {
    std::vector<schedule::Schedule> schedules;
    for (size_t layer = 0; layer < layers; ++layer)
      schedules.push_back(algorithms::point_to_point(nranks, messages).take());
    return Cluster(std::move(schedules), protocol, shape_of(protocol));
  }
};

TEST_P(Turns, BringAllMessagesOfALaunch) {
  const std::vector<Envelope> messages{{0, 1}, {1, 0}, {1, 2}, {2, 2}, {2, 1}};
  for (const uint32_t steps : {1u, 2u, 4u}) {
    Cluster cluster = cluster_of(messages, 3, GetParam(), kDepth / steps);
    // Across the places where counters and flags begin anew.
    for (const uint64_t start : {uint64_t{0}, (uint64_t{1} << 15) - 3, (uint64_t{1} << 32) - 5}) {
      cluster.start_at(start);
      for (uint32_t seed = 1; seed < 9; ++seed) {
        SCOPED_TRACE(testing::Message() << steps << " steps from " << start << ", seed " << seed);
        const Layers layers(cluster, GetParam(), steps, seed);
        ASSERT_TRUE(Cluster::run(cluster.tasks(cluster.launches_in_turns(layers.parts)), seed));
        layers.expect_right();
        EXPECT_TRUE(cluster.guards_intact());
        EXPECT_TRUE(cluster.counters_consistent());
      }
    }
  }
}

// One end has them in one launch, the other one by one, or two by two; and the other way round.
TEST_P(Turns, NeedNotBeTheSameLaunchesAtBothEnds) {
  const std::vector<Envelope> messages{{0, 1}, {1, 0}};
  Cluster cluster = cluster_of(messages, 2, GetParam(), kDepth);
  for (uint32_t seed = 1; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const Layers layers(cluster, GetParam(), 1, seed);
    Cluster::Tasks streams;
    for (size_t rank = 0; rank < 2; ++rank) {
      const size_t together = (seed + rank) % 2 == 0 ? kDepth : 1 + seed % 3;
      std::vector<Launch> launches;
      for (size_t first = 0; first < kDepth; first += together) {
        const size_t end = std::min<size_t>(first + together, kDepth);
        const std::vector<Part> some(layers.parts.begin() + static_cast<std::ptrdiff_t>(first),
                                     layers.parts.begin() + static_cast<std::ptrdiff_t>(end));
        launches.push_back(cluster.launches_in_turns(some)[rank]);
      }
      streams.push_back(std::make_unique<Stream>(cluster.tasks(launches)));
    }
    ASSERT_TRUE(Cluster::run(std::move(streams), seed));
    layers.expect_right();
    EXPECT_TRUE(cluster.counters_consistent());
  }
}

TEST_P(Turns, AreTakenByThreads) {
  const std::vector<Envelope> messages{{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}};
  Cluster cluster = cluster_of(messages, 3, GetParam(), kDepth);
  for (uint32_t seed = 1; seed < 20; ++seed) {
    const Layers layers(cluster, GetParam(), 1, seed);
    Cluster::run_threaded(cluster.tasks(cluster.launches_in_turns(layers.parts)), 3);
    layers.expect_right();
    EXPECT_TRUE(cluster.counters_consistent());
  }
}

TEST_P(Turns, OfMoreStepsThanThereAreSlotsAreRefused) {
  const std::vector<Envelope> messages{{0, 1}};
  Cluster cluster = cluster_of(messages, 2, GetParam(), kDepth + 1);
  Layers layers(cluster, GetParam(), 1, 1);
  layers.parts.push_back(layers.parts.back());
  layers.parts.back().schedule = kDepth;
  EXPECT_FALSE(make_kernel(cluster.launches_in_turns(layers.parts)[0]).is_ok());
}

INSTANTIATE_TEST_SUITE_P(, Turns, testing::Values(Protocol::LL, Protocol::LL128),
                         [](const auto& protocol) { return std::string(name_of(protocol.param)); });

}  // namespace
}  // namespace niccolite::executor::host
