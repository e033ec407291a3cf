// Whole all-reduces through the host executor, bit for bit against a reference: every algorithm of
// the registry, protocol, type and reduction, over ranks, sizes, depths, channels, alignments, in
// and out of place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>

#include "algorithms/registry.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/reference.h"
#include "tests/executor/host/sanitizers.h"

namespace niccolite::executor::host {
namespace {

struct Case {
  const char* algorithm;
  int nranks;
  Protocol protocol;
  DataType type;
  Reduction reduction;
  uint64_t count;
  uint32_t depth;
  uint32_t channels;
  bool is_in_place;
  bool is_misaligned;  // to the element, and no more
  int threads;         // 0: one thread, random order
  uint32_t seed;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.algorithm << ", " << c.nranks << " ranks, " << name_of(c.protocol) << ", "
             << name_of(c.type) << " fold " << static_cast<int>(c.reduction.fold) << " finish "
             << c.reduction.finish_scale << ", " << c.count << " elements, depth " << c.depth
             << ", " << c.channels << " channels" << (c.is_in_place ? ", in place" : "")
             << (c.is_misaligned ? ", misaligned" : "") << ", " << c.threads << " threads, seed "
             << c.seed;
}

// Numbers whose sums and products over 8 ranks are exact in every type, and which depend on rank
// and index.
double number(const Case& c, int rank, uint64_t i) {
  const uint64_t mixed =
      (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xc2b2ae3d27d4eb4fu;
  const auto draw = static_cast<int>((mixed >> 40) % 3);  // 0, 1, 2
  if (c.reduction.fold == Fold::Product)
    return is_floating(c.type) && draw == 2 ? 0.5 : draw == 1 ? 2 : 1;
  if (c.reduction.fold != Fold::Sum) return static_cast<int>((mixed >> 40) % 16);
  return c.type == DataType::Uint8 || c.type == DataType::Uint32 || c.type == DataType::Uint64
             ? draw
             : draw - 1;
}

class Buffers {
 public:
  explicit Buffers(const Case& c) {
    const size_t size = size_of(c.type);
    for (int rank = 0; rank < c.nranks; ++rank) {
      inputs_.emplace_back(c.count * size, c.is_misaligned ? size : 0);
      originals_.emplace_back(c.count * size);
      for (uint64_t i = 0; i < c.count; ++i) {
        store_number(c.type, number(c, rank, i), originals_.back().data() + i * size);
      }
      std::memcpy(inputs_.back().data(), originals_.back().data(), c.count * size);
      if (!c.is_in_place) {
        outputs_.emplace_back(c.count * size, c.is_misaligned ? 3 * size : 0);
        std::memset(outputs_.back().data(), 0xee, c.count * size);
      }
    }
    expected_.resize(c.count * size);
    for (uint64_t i = 0; i < c.count; ++i) {
      std::vector<const std::byte*> elements;
      for (const auto& original : originals_) elements.push_back(original.data() + i * size);
      reference_fold(c.type, c.reduction, elements, true, expected_.data() + i * size);
    }
  }

  OperationBuffers addresses() {
    OperationBuffers buffers;
    for (size_t rank = 0; rank < inputs_.size(); ++rank) {
      buffers.inputs.push_back(inputs_[rank].data());
      buffers.outputs.push_back(outputs_.empty() ? inputs_[rank].data() : outputs_[rank].data());
    }
    return buffers;
  }

  void check(const Case& c) {
    for (size_t rank = 0; rank < inputs_.size(); ++rank) {
      const GuardedMemory& output = outputs_.empty() ? inputs_[rank] : outputs_[rank];
      ASSERT_TRUE(inputs_[rank].guards_intact() && output.guards_intact()) << "rank " << rank;
      for (uint64_t i = 0, size = size_of(c.type); i < c.count; ++i) {
        ASSERT_EQ(std::memcmp(output.data() + i * size, expected_.data() + i * size, size), 0)
            << "rank " << rank << ", index " << i;
      }
      if (outputs_.empty()) continue;
      ASSERT_EQ(std::memcmp(inputs_[rank].data(), originals_[rank].data(), originals_[rank].size()),
                0)
          << "the input of rank " << rank << " has changed";
    }
  }

 private:
  std::vector<GuardedMemory> inputs_;
  std::vector<GuardedMemory> outputs_;  // empty: in place
  std::vector<std::vector<std::byte>> originals_;
  std::vector<std::byte> expected_;
};

schedule::Schedule schedule_of(const char* algorithm, int nranks) {
  return algorithms::find(schedule::Collective::AllReduce, algorithm)->build(nranks, {}).take();
}

void run(Cluster& cluster, const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  Buffers buffers(c);
  const OperationArguments arguments{.count = c.count, .type = c.type, .reduction = c.reduction};
  auto tasks = cluster.tasks(cluster.launches(arguments, buffers.addresses()));
  if (c.threads > 0) {
    Cluster::run_threaded(std::move(tasks), c.threads);
  } else {
    ASSERT_TRUE(Cluster::run(std::move(tasks), c.seed)) << "all ranks wait for each other";
  }
  buffers.check(c);
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent());
}

FifoShape shape_of(const Case& c) {
  return {.channels = c.channels,
          .depth = c.depth,
          .slot_bytes = c.protocol == Protocol::LL ? 256u : 128u};
}

std::vector<Reduction> reductions(int nranks) {
  return {{.fold = Fold::Sum},
          {.fold = Fold::Product},
          {.fold = Fold::Max},
          {.fold = Fold::Min},
          {.fold = Fold::Sum, .finish_scale = 1.0 / nranks, .finish_divisor = nranks}};
}

struct Group {
  const char* algorithm;
  int nranks;
  Protocol protocol;
};

std::vector<Group> groups() {
  std::vector<Group> groups;
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    for (const int nranks : {1, 2, 3, 4, 5, 8}) {
      for (const Protocol protocol : {Protocol::LL, Protocol::Simple})
        groups.push_back({algorithm.name, nranks, protocol});
    }
  }
  return groups;
}

std::string name_of_group(const testing::TestParamInfo<Group>& info) {
  return std::string(info.param.algorithm) + "_" + std::to_string(info.param.nranks) + "_" +
         name_of(info.param.protocol);
}

class AllReduce : public testing::TestWithParam<Group> {};

// All types, reductions and sizes; the other dimensions take turns, so that their pairs meet many
// times over the sweep.
TEST_P(AllReduce, EveryRankHoldsTheResultBitForBit) {
  const auto& [algorithm, nranks, protocol] = GetParam();
  const schedule::Schedule schedule = schedule_of(algorithm, nranks);
  uint32_t turn = static_cast<uint32_t>(nranks);
  int cases = 0;
  for (int type = 0; type < kDataTypes; ++type) {
    for (const Reduction& reduction : reductions(nranks)) {
      const uint64_t chunk = 128 / size_of(static_cast<DataType>(type));
      const uint64_t full = chunk * static_cast<uint64_t>(schedule.nblocks);
      for (const uint64_t count :
           {uint64_t{1}, uint64_t{7}, full - 1, full, full + 1, 9 * full + 5}) {
        ++turn;
        if (kIsSanitized && turn % 13 != 0) continue;
        const Case c{.algorithm = algorithm,
                     .nranks = nranks,
                     .protocol = protocol,
                     .type = static_cast<DataType>(type),
                     .reduction = reduction,
                     .count = count,
                     .depth = turn % 3 == 0 ? 4u : 2u,
                     .channels = turn % 5 < 3 ? 1u : 3u,
                     .is_in_place = turn % 2 == 0,
                     .is_misaligned = turn / 2 % 2 == 0,
                     .threads = 0,
                     .seed = turn};
        Cluster cluster(schedule, protocol, shape_of(c));
        ASSERT_NO_FATAL_FAILURE(run(cluster, c));
        ++cases;
      }
    }
  }
  ASSERT_GT(cases, 0);
}

// The same connections, many operations of other sizes and types, with the tasks on several
// threads.
TEST_P(AllReduce, ConnectionsServeOneOperationAfterAnother) {
  const auto& [algorithm, nranks, protocol] = GetParam();
  Case c{.algorithm = algorithm,
         .nranks = nranks,
         .protocol = protocol,
         .type = DataType::Float32,
         .reduction = {},
         .count = 0,
         .depth = 2,
         .channels = 2,
         .is_in_place = false,
         .is_misaligned = false,
         .threads = 0,
         .seed = 1};
  Cluster cluster(schedule_of(algorithm, nranks), protocol, shape_of(c));
  for (uint32_t i = 0; i < (kIsSanitized ? 12u : 40u); ++i) {
    c.count = 1 + i * 37 % 701;
    c.type = i % 3 == 0 ? DataType::Bfloat16 : i % 3 == 1 ? DataType::Float64 : DataType::Int8;
    c.is_in_place = i % 4 == 1;
    c.threads = i % 5 == 0 ? 2 : 0;
    c.seed = i;
    ASSERT_NO_FATAL_FAILURE(run(cluster, c));
  }
}

// Counters near the places where 31 and 32 bits of them wrap, and where the whole counter does.
TEST_P(AllReduce, StepsMayWrap) {
  const auto& [algorithm, nranks, protocol] = GetParam();
  for (const uint64_t start : {(uint64_t{1} << 31) - 9, (uint64_t{1} << 32) - 9,
                               (uint64_t{3} << 31) - 9, uint64_t{0} - 9}) {
    Case c{.algorithm = algorithm,
           .nranks = nranks,
           .protocol = protocol,
           .type = DataType::Float16,
           .reduction = {},
           .count = 0,
           .depth = 4,
           .channels = 1,
           .is_in_place = false,
           .is_misaligned = true,
           .threads = 0,
           .seed = 1};
    Cluster cluster(schedule_of(algorithm, nranks), protocol, shape_of(c));
    cluster.start_at(start);
    for (const uint64_t count : {5u, 300u, 1u, 70u, 9u, 900u}) {
      c.count = count;
      ++c.seed;
      SCOPED_TRACE(start);
      ASSERT_NO_FATAL_FAILURE(run(cluster, c));
    }
  }
}

// Chunks of many strips, and more bytes than a step may move.
TEST_P(AllReduce, LargeChunksTakeManySteps) {
  const auto& [algorithm, nranks, protocol] = GetParam();
  if (nranks > 3) return;
  Case c{.algorithm = algorithm,
         .nranks = nranks,
         .protocol = protocol,
         .type = DataType::Float16,
         .reduction = {},
         .count = kIsSanitized ? 200'001u : 1'000'001u,
         .depth = 2,
         .channels = 1,
         .is_in_place = true,
         .is_misaligned = true,
         .threads = 2,
         .seed = 1};
  Cluster cluster(schedule_of(algorithm, nranks), protocol,
                  {.channels = 1, .depth = 2, .slot_bytes = 512 << 10});
  ASSERT_NO_FATAL_FAILURE(run(cluster, c));
}

INSTANTIATE_TEST_SUITE_P(Registry, AllReduce, testing::ValuesIn(groups()), name_of_group);

// A pre-multiplied sum in a type that rounds: the scaled inputs that travel equal those that are
// folded at home.
TEST(AllReduceScaled, InputIsScaledTheSameWhereverItIsFolded) {
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    for (const Protocol protocol : {Protocol::LL, Protocol::Simple}) {
      for (const DataType type :
           {DataType::Bfloat16, DataType::Float64, DataType::Int32, DataType::Uint8}) {
        SCOPED_TRACE(testing::Message()
                     << algorithm.name << " " << name_of(protocol) << " " << name_of(type));
        constexpr int kRanks = 2;  // two operands: the order does not matter to the sum
        constexpr uint64_t kCount = 333;
        const size_t size = size_of(type);
        Cluster cluster(algorithm.build(kRanks, {}).take(), protocol,
                        {.channels = 2, .depth = 2, .slot_bytes = 256});
        std::vector<GuardedMemory> inputs, outputs;
        for (int rank = 0; rank < kRanks; ++rank) {
          inputs.emplace_back(kCount * size);
          outputs.emplace_back(kCount * size);
          for (uint64_t i = 0; i < kCount; ++i) {
            store_number(type, static_cast<double>((i * 7 + static_cast<uint64_t>(rank) * 3) % 100),
                         inputs.back().data() + i * size);
          }
        }
        const OperationBuffers buffers{.inputs = {inputs[0].data(), inputs[1].data()},
                                       .outputs = {outputs[0].data(), outputs[1].data()}};
        std::vector<Launch> launches = cluster.launches({.count = kCount, .type = type}, buffers);
        // Every rank has its own scalar.
        launches[0].reduction = {.input_scale = 0.3, .input_factor = 3};
        launches[1].reduction = {.input_scale = 1.7, .input_factor = -2};
        ASSERT_TRUE(Cluster::run(cluster.tasks(launches), 5));
        for (uint64_t i = 0; i < kCount; ++i) {
          std::byte scaled[2][8], expected[8];
          for (size_t rank = 0; rank < 2; ++rank) {
            reference_scale_input(type, launches[rank].reduction, inputs[rank].data() + i * size,
                                  scaled[rank]);
          }
          const std::byte* operands[] = {scaled[0], scaled[1]};
          reference_fold(type, {}, operands, false, expected);
          ASSERT_EQ(std::memcmp(outputs[0].data() + i * size, expected, size), 0) << i;
          ASSERT_EQ(std::memcmp(outputs[1].data() + i * size, expected, size), 0) << i;
        }
      }
    }
  }
}

// Sums that depend on the order: schedules without partial sums fold in ascending rank, once, and
// so does the reference. The others need only give all ranks the same.
TEST(AllReduceOrder, AllRanksFoldInTheSameOrder) {
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    for (const Protocol protocol : {Protocol::LL, Protocol::Simple}) {
      for (const DataType type : {DataType::Float32, DataType::Float16}) {
        SCOPED_TRACE(testing::Message()
                     << algorithm.name << " " << name_of(protocol) << " " << name_of(type));
        constexpr size_t kRanks = 5;
        constexpr uint64_t kCount = 777;
        const size_t size = size_of(type);
        const schedule::Schedule schedule = algorithm.build(kRanks, {}).take();
        std::vector<GuardedMemory> inputs, outputs;
        OperationBuffers buffers;
        for (size_t rank = 0; rank < kRanks; ++rank) {
          inputs.emplace_back(kCount * size);
          outputs.emplace_back(kCount * size);
          for (uint64_t i = 0; i < kCount; ++i) {
            const auto mixed = static_cast<double>((i * 7919 + rank * 104729) % 1009);
            store_number(type, (mixed - 504) / 7 * (rank % 2 == 0 ? 1 : 30),
                         inputs.back().data() + i * size);
          }
          buffers.inputs.push_back(inputs.back().data());
          buffers.outputs.push_back(outputs.back().data());
        }
        Cluster cluster(schedule, protocol, {.channels = 1, .depth = 2, .slot_bytes = 256});
        ASSERT_TRUE(Cluster::run(
            cluster.tasks(cluster.launches({.count = kCount, .type = type}, buffers)), 3));
        uint64_t unlike_descending = 0;
        for (uint64_t i = 0; i < kCount; ++i) {
          std::vector<const std::byte*> operands;
          for (const GuardedMemory& input : inputs) operands.push_back(input.data() + i * size);
          std::byte ascending[8], descending[8];
          reference_fold(type, {}, operands, true, ascending);
          std::reverse(operands.begin(), operands.end());
          reference_fold(type, {}, operands, true, descending);
          if (std::memcmp(ascending, descending, size) != 0) ++unlike_descending;
          const std::byte* expected =
              schedule.partial_sums ? outputs[0].data() + i * size : ascending;
          for (const GuardedMemory& output : outputs) {
            ASSERT_EQ(std::memcmp(output.data() + i * size, expected, size), 0) << i;
          }
        }
        // Half is summed in float, mostly without a rounding that the order could change.
        ASSERT_TRUE(type == DataType::Float16 || unlike_descending > 0)
            << "the data does not show the order";
      }
    }
  }
}

// With one rank an all-reduce is a copy, which is scaled like any operand and any result.
TEST(AllReduceScaled, OneRankScalesItsCopy) {
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    for (const bool is_in_place : {false, true}) {
      Cluster cluster(algorithm.build(1, {}).take(), Protocol::Simple,
                      {.channels = 2, .depth = 2, .slot_bytes = 128});
      std::vector<float> input(1000, 6);
      std::vector<float> output(1000, 0);
      float* target = is_in_place ? input.data() : output.data();
      const OperationArguments arguments{.count = 1000,
                                         .type = DataType::Float32,
                                         .reduction = {.input_scale = 0.5, .finish_scale = 0.25}};
      const auto launches =
          cluster.launches(arguments, {.inputs = {input.data()}, .outputs = {target}});
      ASSERT_TRUE(Cluster::run(cluster.tasks(launches), 1));
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(target[i], 0.75f) << algorithm.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace niccolite::executor::host
