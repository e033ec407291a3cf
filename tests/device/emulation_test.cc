// The kernels' own source, run by fibers on the CPU (emulated_gpu.h): all ranks of an all-reduce at
// once, against the reference, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "tests/device/emulated_gpu.h"
#include "tests/device/operation.h"
#include "tests/observe/marked_kernels.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Protocol;
using executor::ReduceOp;
using executor::cuda::KernelLaunch;

constexpr size_t kGuardBytes = 64;
constexpr auto kPoison = std::byte{0xcd};

/// Ranks whose memory is the host's, kept over several operations as a communicator's is.
class Ranks {
 public:
  explicit Ranks(const Operation& operation) : operation_(operation) {
    auto programs = compile_all(operation);
    EXPECT_TRUE(programs.is_ok()) << programs.status().message();
    programs_ = std::move(programs).take();
    std::vector<executor::Program> plain;
    for (const auto& program : programs_) plain.push_back(*program);
    wiring_ = std::make_unique<Wiring>(plain, shape_of(operation));
    for (int rank = 0; rank < operation.nranks; ++rank) {
      memory_.emplace_back(wiring_->bytes(rank) / sizeof(Line) + 1);
      addresses_.push_back(reinterpret_cast<std::byte*>(memory_.back().data()));
    }
  }

  executor::ControlWords control{};
  std::vector<observe::KernelMarks> marks;  // by rank; empty: kernels say nothing
  executor::cuda::Specialisation specialisation = executor::cuda::Specialisation::Allowed;
  uint64_t limit = 20'000'000;  // switches of fibers

  void set_steps(uint64_t step) {
    for (int rank = 0; rank < operation_.nranks; ++rank) {
      for (const auto& port : wiring_->ports(rank, addresses_)) {
        for (uint32_t c = 0; c < operation_.channels; ++c) {
          port.control[c].step = step;
          port.control[c].remote = step;
        }
      }
    }
  }

  /// Runs the operation once; the ranks in `absent` do not take part. False: it does not end.
  bool run(const std::vector<std::vector<std::byte>>& inputs, uint64_t seed,
           std::vector<int> absent = {}) {
    const size_t element = size_of(operation_.type);
    const size_t bytes = operation_.count * element;
    outputs_.clear();
    std::vector<std::vector<std::byte>> input_buffers;
    std::vector<KernelLaunch> launches;
    for (int rank = 0; rank < operation_.nranks; ++rank) {
      const size_t offset = kGuardBytes + operation_.misalignment * element;
      outputs_.emplace_back(offset + bytes + kGuardBytes + 16, kPoison);
      input_buffers.emplace_back(offset + bytes + kGuardBytes + 16, kPoison);
      const auto aligned = [&](std::vector<std::byte>& buffer) {
        std::byte* data = buffer.data();
        return data + (16 - reinterpret_cast<uintptr_t>(data) % 16) % 16 + offset;
      };
      std::byte* output = aligned(outputs_.back());
      std::byte* input = operation_.in_place ? output : aligned(input_buffers.back());
      std::memcpy(input, inputs[static_cast<size_t>(rank)].data(), bytes);
      output_data_.resize(outputs_.size());
      output_data_.back() = output;

      executor::Launch launch =
          launch_of(operation_, programs_[static_cast<size_t>(rank)], {input, output});
      set_ports(launch, wiring_->ports(rank, addresses_));
      launch.control = &control;
      launch.control_device = &control;
      if (!marks.empty()) launch.marks = marks[static_cast<size_t>(rank)];
      auto prepared = executor::cuda::prepare(launch, specialisation);
      EXPECT_TRUE(prepared.is_ok()) << prepared.status().message();
      launches.push_back(std::move(prepared).take());
      if (!marks.empty()) set_number(launches.back(), launch.marks, ++launched_[rank]);
      variant_ = launches.back().kernel.variant;
    }
    std::vector<KernelLaunch*> present;
    for (int rank = 0; rank < operation_.nranks; ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) == absent.end()) {
        present.push_back(&launches[static_cast<size_t>(rank)]);
      }
    }
    return emulation::run(present, seed, limit);
  }

  executor::cuda::KernelVariant variant() const { return variant_; }  // of the last run's kernels

  void expect_equal(const std::vector<std::byte>& expected) {
    for (int rank = 0; rank < operation_.nranks; ++rank) {
      const auto& buffer = outputs_[static_cast<size_t>(rank)];
      const std::byte* data = output_data_[static_cast<size_t>(rank)];
      EXPECT_EQ(difference(operation_, data, expected), "") << "rank " << rank;
      for (const std::byte* at = buffer.data(); at < data; ++at) {
        ASSERT_EQ(*at, kPoison) << "written in front of rank " << rank << "'s output";
      }
      for (const std::byte* at = data + expected.size(); at < buffer.data() + buffer.size(); ++at) {
        ASSERT_EQ(*at, kPoison) << "written behind rank " << rank << "'s output";
      }
    }
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  Operation operation_;
  std::map<int, uint64_t> launched_;  // by rank
  Programs programs_;
  std::unique_ptr<Wiring> wiring_;
  std::vector<std::vector<Line>> memory_;
  std::vector<std::byte*> addresses_;
  std::vector<std::vector<std::byte>> outputs_;
  std::vector<std::byte*> output_data_;
  executor::cuda::KernelVariant variant_ = executor::cuda::KernelVariant::Program;
};

std::vector<std::vector<std::byte>> inputs_of(const Operation& operation, bool rough = false) {
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < operation.nranks; ++rank) {
    inputs.push_back(rough ? rough_input_of(operation, rank) : input_of(operation, rank));
  }
  return inputs;
}

void expect_right(const Operation& operation, bool rough = false, int times = 2) {
  SCOPED_TRACE(describe(operation));
  Ranks ranks(operation);
  const auto inputs = inputs_of(operation, rough);
  const auto expected = expected_output(operation, inputs, /*rank=*/0);
  for (int time = 0; time < times; ++time) {
    // In turn by the kernel written for the pattern, if there is one, and by the interpreter.
    ranks.specialisation = time % 2 == 0 ? executor::cuda::Specialisation::Allowed
                                         : executor::cuda::Specialisation::Off;
    ASSERT_TRUE(ranks.run(inputs, static_cast<uint64_t>(time))) << "does not end";
    ranks.expect_equal(expected);
  }
}

constexpr Protocol kProtocols[] = {Protocol::LL, Protocol::LL128, Protocol::Simple};
const char* const kAlgorithms[] = {"ring", "one_shot", "two_shot", "two_shot_workers"};

TEST(EmulatedKernel, GivesTheSumOnEveryRankAtEverySize) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const int nranks : {1, 2, 3, 4}) {
        for (const uint64_t count : {1, 2, 3, 31, 256, 1000, 2003}) {
          expect_right({.algorithm = algorithm,
                        .nranks = nranks,
                        .protocol = protocol,
                        .count = count,
                        .channels = 2,
                        .depth = 2,
                        .slot_bytes = 1024,
                        .threads = 96});
        }
      }
    }
  }
}

TEST(EmulatedKernel, KnowsEveryTypeAndReduceOp) {
  for (const Protocol protocol : kProtocols) {
    for (int type = 0; type < executor::kDataTypes; ++type) {
      for (int op = 0; op < executor::kReduceOps; ++op) {
        for (const char* algorithm : {"one_shot", "ring"}) {
          expect_right({.algorithm = algorithm,
                        .nranks = 3,
                        .protocol = protocol,
                        .type = static_cast<DataType>(type),
                        .reduction = {.op = static_cast<ReduceOp>(op)},
                        .count = 777,
                        .slot_bytes = 512,
                        .threads = 64});
        }
      }
    }
  }
}

TEST(EmulatedKernel, ReducesInRankOrderRoundingOnce) {
  for (const Protocol protocol : kProtocols) {
    for (const DataType type : {DataType::Float16, DataType::Bfloat16, DataType::Float32,
                                DataType::Float64, DataType::Float8e4m3, DataType::Float8e5m2}) {
      for (const char* algorithm : {"one_shot", "two_shot"}) {
        expect_right({.algorithm = algorithm,
                      .nranks = 4,
                      .protocol = protocol,
                      .type = type,
                      .count = 1001,
                      .threads = 128},
                     /*rough=*/true);
      }
    }
  }
}

TEST(EmulatedKernel, ScalesInputsAndResults) {
  for (const Protocol protocol : kProtocols) {
    for (const DataType type : {DataType::Float16, DataType::Float32, DataType::Float64}) {
      for (const char* algorithm : {"one_shot", "two_shot"}) {
        for (const int nranks : {1, 3}) {
          Operation operation{.algorithm = algorithm,
                              .nranks = nranks,
                              .protocol = protocol,
                              .type = type,
                              .count = 333,
                              .threads = 96};
          operation.reduction.finish_scale = 1.0 / 3;
          expect_right(operation, /*rough=*/true);
          operation.reduction.finish_scale = 1;
          operation.reduction.input_scale = 0.7;
          expect_right(operation, /*rough=*/true);
        }
      }
    }
    for (const DataType type : {DataType::Int8, DataType::Uint32, DataType::Int64}) {
      Operation operation{.nranks = 3, .protocol = protocol, .type = type, .count = 333};
      operation.reduction.finish_divisor = 3;
      expect_right(operation);
    }
  }
}

TEST(EmulatedKernel, TakesBuffersOfAnyAlignment) {
  for (const Protocol protocol : kProtocols) {
    for (const DataType type :
         {DataType::Uint8, DataType::Bfloat16, DataType::Float32, DataType::Float64}) {
      for (const size_t misalignment : {1, 2, 4, 8}) {
        for (const bool in_place : {false, true}) {
          expect_right({.algorithm = "two_shot",
                        .nranks = 2,
                        .protocol = protocol,
                        .type = type,
                        .count = 517,
                        .slot_bytes = 512,
                        .threads = 96,
                        .misalignment = misalignment,
                        .in_place = in_place});
        }
      }
    }
  }
}

// The last vec8 may be less than whole, be the first or the second of its thread, in a line or a
// row that is the last of several; and a buffer may end anywhere in its words.
TEST(EmulatedKernel, StoresTheLastVec8WhereverItFalls) {
  for (const DataType type : {DataType::Uint8, DataType::Bfloat16, DataType::Float32}) {
    for (const size_t misalignment : {0, 1, 2, 5}) {
      for (const uint64_t bytes : {1, 121, 479}) {
        for (uint64_t more = 0; more < 9; ++more) {
          const uint64_t count = bytes / executor::size_of(type) + more;
          expect_right({.algorithm = "two_shot",
                        .nranks = 2,
                        .protocol = Protocol::LL128,
                        .type = type,
                        .count = count,
                        .slot_bytes = 1024,
                        .threads = 64,
                        .misalignment = misalignment,
                        .in_place = more % 2 == 0});
        }
      }
    }
  }
}

TEST(EmulatedKernel, WorksInPlace) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const int nranks : {1, 3, 4}) {
        expect_right({.algorithm = algorithm,
                      .nranks = nranks,
                      .protocol = protocol,
                      .count = 3001,
                      .channels = 3,
                      .slot_bytes = 512,
                      .threads = 96,
                      .in_place = true});
      }
    }
  }
}

TEST(EmulatedKernel, WorksForEveryFifoDepthAndManyOperations) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const uint32_t depth : {2u, 4u, 8u}) {
        expect_right({.algorithm = algorithm,
                      .nranks = 3,
                      .protocol = protocol,
                      .count = 900,
                      .depth = depth,
                      .slot_bytes = 256,
                      .threads = 96},
                     /*rough=*/false, /*times=*/6);
      }
    }
  }
}

TEST(EmulatedKernel, PhasesReductionEveryTypeAmongUpToEightRanks) {
  int turn = 0;
  for (int type = 0; type < executor::kDataTypes; ++type) {
    for (int op = 0; op < executor::kReduceOps; ++op) {
      // Of few and of many peers in turn; lengths that end in the middle of lines and vec8s.
      const int nranks = 2 + turn % 7;
      expect_right({.algorithm = "two_shot_workers",
                    .nranks = nranks,
                    .protocol = Protocol::LL128,
                    .type = static_cast<DataType>(type),
                    .reduction = {.op = static_cast<ReduceOp>(op)},
                    .count = static_cast<uint64_t>(nranks * 150 + turn),
                    .channels = 2,
                    .depth = 2,
                    .slot_bytes = 640,
                    .threads = 64,
                    .misalignment = static_cast<size_t>(turn % 3 == 0 ? turn % 5 : 0),
                    .in_place = turn % 2 == 0});
      ++turn;
    }
  }
}

TEST(EmulatedKernel, PhasesRunWhereTheyAreMeantTo) {
  const auto variant_of = [](const Operation& operation) {
    Ranks ranks(operation);
    EXPECT_TRUE(ranks.run(inputs_of(operation), 1)) << describe(operation);
    return ranks.variant();
  };
  using executor::cuda::KernelVariant;
  Operation operation{.algorithm = "two_shot_workers",
                      .nranks = 3,
                      .protocol = Protocol::LL128,
                      .count = 900,
                      .threads = 64};
  EXPECT_EQ(variant_of(operation), KernelVariant::Phases);
  operation.algorithm = "two_shot";
  EXPECT_EQ(variant_of(operation), KernelVariant::Phases);
  operation.reduction.finish_scale = 0.5;
  EXPECT_EQ(variant_of(operation), KernelVariant::Phases);
  operation.reduction.input_scale = 0.5;
  EXPECT_EQ(variant_of(operation), KernelVariant::Program);
  operation.reduction = {};
  operation.protocol = Protocol::LL;
  EXPECT_EQ(variant_of(operation), KernelVariant::Program);
  operation.protocol = Protocol::LL128;
  operation.depth = 1;  // it pushes a round ahead
  operation.slot_bytes = 256;
  EXPECT_EQ(variant_of(operation), KernelVariant::Program);
  operation.slot_bytes = 4096;  // one round
  EXPECT_EQ(variant_of(operation), KernelVariant::Phases);
}

TEST(EmulatedKernel, WorksWithManyRanksAndAProgramInDeviceMemory) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : {"one_shot", "ring"}) {
      const Operation operation{.algorithm = algorithm,
                                .nranks = 40,
                                .protocol = protocol,
                                .type = DataType::Int32,
                                .count = 100,
                                .slot_bytes = 256,
                                .threads = 32};
      expect_right(operation, /*rough=*/false, /*times=*/1);
    }
  }
}

TEST(EmulatedKernel, FlagsWrapWithoutBeingTakenForOldOnes) {
  for (const uint64_t wrap : {uint64_t{1} << 15, uint64_t{1} << 16, uint64_t{1} << 32}) {
    const Operation operation{.nranks = 2, .count = 300, .depth = 2, .slot_bytes = 1024};
    Ranks ranks(operation);
    ranks.set_steps(wrap - 3);
    const auto inputs = inputs_of(operation);
    const auto expected = expected_output(operation, inputs, /*rank=*/0);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      ASSERT_TRUE(ranks.run(inputs, seed));
      ranks.expect_equal(expected);
    }
  }
}

TEST(EmulatedKernel, EndsWhenAborted) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      const Operation operation{.algorithm = algorithm,
                                .nranks = 3,
                                .protocol = protocol,
                                .count = 900,
                                .depth = 2,
                                .slot_bytes = 256,
                                .threads = 96};
      Ranks ranks(operation);
      ranks.control.abort = 1;
      EXPECT_TRUE(ranks.run(inputs_of(operation), 1, /*absent=*/{2})) << describe(operation);
    }
  }
}

// Each CTA of each rank says what it has begun and ended, in every form of kernel; who waits for a
// rank that does not come has begun, and not ended.
TEST(EmulatedKernel, MarksWhatItBeginsAndEnds) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      const Operation operation{.algorithm = algorithm,
                                .nranks = 3,
                                .protocol = protocol,
                                .count = 900,
                                .channels = 2,
                                .depth = 2,
                                .slot_bytes = 256,
                                .threads = 96};
      SCOPED_TRACE(describe(operation));
      std::deque<observe::MarkedKernels> kernels;  // which stay where they are
      Ranks ranks(operation);
      for (int rank = 0; rank < 3; ++rank)
        ranks.marks.push_back(kernels.emplace_back(observe::kMarkedCtas).marks());
      const auto inputs = inputs_of(operation);
      for (uint64_t launch = 1; launch <= 2; ++launch) {
        ASSERT_TRUE(ranks.run(inputs, launch));
        for (const observe::KernelMarks& marks : ranks.marks) {
          EXPECT_EQ(marks.progress().begun, launch);
          EXPECT_FALSE(marks.progress().is_running);
          for (uint32_t cta = 0; cta < operation.channels; ++cta) {
            const observe::KernelSpan& span = marks.spans_of(launch)[cta];
            EXPECT_EQ(span.begin.launch, launch) << "CTA " << cta;
            EXPECT_EQ(span.end.launch, launch) << "CTA " << cta;
            EXPECT_LT(span.begin.time, span.end.time) << "CTA " << cta;
          }
        }
      }
      ranks.limit = 200'000;
      EXPECT_FALSE(ranks.run(inputs, 3, /*absent=*/{2}));
      for (int rank : {0, 1}) {
        EXPECT_EQ(ranks.marks[static_cast<size_t>(rank)].progress().begun, 3u);
        EXPECT_TRUE(ranks.marks[static_cast<size_t>(rank)].progress().is_running);
      }
    }
  }
}

TEST(EmulatedKernel, WaitsForTheEndWhenToldToLeave) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const bool is_ended : {false, true}) {
        const Operation operation{.algorithm = algorithm,
                                  .nranks = 3,
                                  .protocol = protocol,
                                  .count = 900,
                                  .depth = 2,
                                  .slot_bytes = 256,
                                  .threads = 96};
        Ranks ranks(operation);
        ranks.control.abort = static_cast<uint32_t>(executor::Command::Leave);
        if (is_ended)
          emulation::set_after(1'000'000, &ranks.control.abort,
                               static_cast<uint32_t>(executor::Command::End));
        if (!is_ended) ranks.limit = 2'000'000;
        EXPECT_EQ(ranks.run(inputs_of(operation), 1, /*absent=*/{2}), is_ended)
            << describe(operation);
      }
    }
  }
}

TEST(EmulatedKernel, WaitsForAnAbsentRank) {
  const Operation operation{.nranks = 2, .count = 16};
  Ranks ranks(operation);
  ranks.limit = 1'000'000;
  EXPECT_FALSE(ranks.run(inputs_of(operation), 1, /*absent=*/{1}));
}

}  // namespace
}  // namespace niccolite::device_test
