// Launches of several works: batches of messages, and programs that were joined.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "algorithms/all_reduce.h"
#include "algorithms/point_to_point.h"
#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/sanitizers.h"

namespace niccolite::executor::host {
namespace {

using algorithms::Envelope;
using schedule::Schedule;

constexpr FifoShape kShape{.channels = 6, .depth = 2, .slot_bytes = 256};

struct Mix {
  std::vector<std::vector<uint64_t>> counts;  // by part
  DataType type = DataType::Uint8;
  bool is_in_place = false;
  bool is_misaligned = false;
  uint32_t seed = 1;
};

// All the cluster's schedules in one launch.
void run(Cluster& cluster, const Mix& mix) {
  std::deque<Operands> operands;
  std::vector<Part> parts;
  for (size_t i = 0; i < mix.counts.size(); ++i) {
    operands.emplace_back(
        cluster.schedule(i), mix.type, mix.counts[i],
        OperandOptions{.is_in_place = mix.is_in_place, .is_misaligned = mix.is_misaligned});
    parts.push_back({.schedule = i,
                     .counts = mix.counts[i],
                     .buffers = operands.back().addresses(),
                     .tag = static_cast<uint16_t>(mix.seed * 31 + i)});
  }
  ASSERT_TRUE(Cluster::run(cluster.tasks(cluster.launches(parts, mix.type, {})), mix.seed))
      << "all ranks wait for each other";
  for (const Operands& part : operands) ASSERT_NO_FATAL_FAILURE(part.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
  ASSERT_EQ(cluster.control.report, 0u);
}

struct Pattern {
  const char* name;
  int nranks;
  std::vector<Envelope> messages;
};

std::vector<Pattern> patterns() {
  std::vector<Pattern> patterns{
      {"to_oneself", 1, {{0, 0}}},
      {"one_way", 2, {{0, 1}}},
      {"both_ways", 2, {{0, 1}, {1, 0}}},
      {"one_sends_to_all", 5, {{2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}}},
      {"one_receives_from_all", 4, {{3, 1}, {2, 1}, {0, 1}, {1, 1}}},
      {"neighbours", 4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {1, 0}, {2, 1}, {3, 2}, {0, 3}}},
      {"some_take_no_part", 6, {{5, 0}, {0, 3}, {3, 3}}},
  };
  Pattern all{"everyone_to_everyone", 8, {}};
  for (int sender = 0; sender < 8; ++sender)
    for (int receiver = 0; receiver < 8; ++receiver) all.messages.push_back({sender, receiver});
  patterns.push_back(all);
  Pattern far{"many_distances", 21, {}};
  for (int rank = 0; rank < 21; ++rank)
    for (const int distance : {0, 1, 7, 8, 9, 16, 20})
      far.messages.push_back({rank, (rank + distance) % 21});
  patterns.push_back(far);
  return patterns;
}

class Messages : public testing::TestWithParam<Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, Messages, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_P(Messages, OfAnySizesArriveWhole) {
  const uint64_t slot = data_bytes(GetParam(), kShape.slot_bytes);
  const uint64_t sizes[] = {0, 1, 3, 31, 33, slot - 1, slot, slot + 1, 2 * slot + 5, 20 * slot + 7};
  for (const auto& [name, nranks, messages] : patterns()) {
    SCOPED_TRACE(name);
    Cluster cluster(algorithms::point_to_point(nranks, messages).take(), GetParam(), kShape);
    for (uint32_t turn = 0; turn < std::size(sizes); ++turn) {
      SCOPED_TRACE(turn);
      Mix mix{.counts = {{}}, .is_misaligned = turn % 2 == 0, .seed = turn};
      for (size_t m = 0; m < messages.size(); ++m)
        mix.counts[0].push_back(sizes[(turn + 3 * m) % std::size(sizes)]);
      ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
    }
  }
}

// Each rank builds its own part, and knows no other messages than its own.
TEST_P(Messages, NeedNoKnowledgeOfOthersMessages) {
  for (const auto& [name, nranks, messages] : patterns()) {
    for (int rank = 0; rank < nranks; ++rank) {
      SCOPED_TRACE(testing::Message() << name << " rank " << rank);
      std::vector<Envelope> own;
      for (const Envelope& message : messages)
        if (message.sender == rank || message.receiver == rank) own.push_back(message);
      const Schedule whole = algorithms::point_to_point(nranks, messages).take();
      const Schedule part = algorithms::point_to_point(nranks, own, {.only_rank = rank}).take();
      const Result<Program> a = compile(whole, rank), b = compile(part, rank);
      ASSERT_TRUE(a.is_ok() && b.is_ok());
      ASSERT_EQ(a.value().works.size(), b.value().works.size());
      ASSERT_EQ(a.value().workers.size(), b.value().workers.size());
      for (size_t worker = 0; worker < a.value().workers.size(); ++worker)
        EXPECT_EQ(a.value().workers[worker].work, b.value().workers[worker].work);
    }
  }
}

TEST_P(Messages, OfZeroBytesNeedNoBuffers) {
  Cluster cluster(algorithms::point_to_point(2, std::vector<Envelope>{{0, 1}, {1, 0}}).take(),
                  GetParam(), kShape);
  const Part part{.counts = {0, 0}, .buffers = {{nullptr, nullptr}, {nullptr, nullptr}}};
  EXPECT_TRUE(Cluster::run(cluster.tasks(cluster.launches({part}, DataType::Uint8, {})), 1));
  EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
}

class Joined : public testing::TestWithParam<Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, Joined, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

// Three operations over the same connections at once, drawn from the registry and from messages.
TEST_P(Joined, OperationsRunSideBySideInOneLaunch) {
  const int draws = kIsSanitized ? 20 : 200;
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(draws); ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](size_t below) { return random() % below; };
    const int nranks = 2 + static_cast<int>(draw(5));
    Mix mix{.counts = {},
            .type = draw(2) == 0 ? DataType::Float32 : DataType::Uint8,
            .is_in_place = draw(2) == 0,
            .is_misaligned = draw(2) == 0,
            .seed = seed};
    std::vector<Schedule> schedules;
    testing::Message drawn;
    drawn << "seed " << seed << ", " << nranks << " ranks";
    for (size_t part = 0, parts = 2 + draw(2); part < parts; ++part) {
      if (draw(4) == 0) {
        std::vector<Envelope> messages;
        for (int sender = 0; sender < nranks; ++sender)
          for (int receiver = 0; receiver < nranks; ++receiver)
            if (draw(3) == 0) messages.push_back({sender, receiver});
        schedules.push_back(algorithms::point_to_point(nranks, messages).take());
        mix.counts.emplace_back();
        for (size_t m = 0; m < messages.size(); ++m) mix.counts.back().push_back(draw(1500));
      } else {
        const planner::Form& algorithm = planner::forms()[draw(planner::forms().size())];
        algorithms::Options options;
        if (schedule::has_root(algorithm.collective))
          options.root = static_cast<int>(draw(static_cast<size_t>(nranks)));
        schedules.push_back(algorithm.build(nranks, options).take());
        mix.counts.push_back({draw(1500)});
      }
      drawn << ", " << schedule::name_of(schedules.back().collective) << " "
            << schedules.back().algorithm;
    }
    SCOPED_TRACE(drawn);
    Cluster cluster(std::move(schedules), GetParam(), kShape);
    for (int again = 0; again < 3; ++again) ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
  }
}

// Several pattern channels of one work divide its data; each uses the FIFO channels of its share.
TEST_P(Joined, RingsShareTheDataOfAWork) {
  const algorithms::Options options{.rings = {{0, 1, 2, 3}, {3, 1, 0, 2}, {0, 2, 1, 3}}};
  Cluster cluster(algorithms::all_reduce_ring(4, options).take(), GetParam(), kShape);
  for (const uint64_t count : {1u, 30u, 999u, 20000u}) {
    ASSERT_NO_FATAL_FAILURE(run(cluster, {.counts = {{count}}, .type = DataType::Float32}));
  }
}

}  // namespace
}  // namespace niccolite::executor::host
