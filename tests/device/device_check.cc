// Checks the CUDA executor on the GPUs of this machine, from 1 to 4, bit for bit against a
// reference on the host. Prints a line per group of cases and "N passed, N failed"; exit code 1
// when any failed. With one GPU several ranks share it.
#include <fmt/core.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "executor/cuda/kernels.h"
#include "gpu/cuda/open.h"
#include "tests/device/gpu_ranks.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Fold;
using executor::Protocol;
using Clock = std::chrono::steady_clock;

constexpr uint8_t kPoison = 0xcd;
constexpr size_t kGuardBytes = 256;
constexpr Protocol kProtocols[] = {Protocol::LL, Protocol::Simple};
const char* const kAlgorithms[] = {"ring", "one_shot", "two_shot", "two_shot_lane"};

class Checker {
 public:
  Checker(gpu::Machine& machine, int ngpus) : machine_(machine), ngpus_(ngpus) {}

  int failed() const { return failed_; }
  int passed() const { return passed_; }

  void begin(const char* group) {
    group_ = group;
    start_ = Clock::now();
    passed_before_ = passed_;
    failed_before_ = failed_;
  }
  void end() {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    fmt::print("{:<44} {:>5} passed {:>3} failed  {:6.1f} s\n", group_, passed_ - passed_before_,
               failed_ - failed_before_, seconds);
    std::fflush(stdout);
  }

  enum class Inputs { Exact, Rough };
  enum class Mode { Stream, Graph };
  void check(const AllReduce& operation, Mode mode = Mode::Stream, Inputs inputs = Inputs::Exact,
             int times = 2) {
    count(run(operation, mode, inputs, times), operation, mode);
  }

  /// One rank is missing; the others end once aborted, and not before.
  void check_abort(const AllReduce& operation) {
    count(run_abort(operation), operation, Mode::Stream);
  }

 private:
  void count(const Status& status, const AllReduce& operation, Mode mode) {
    if (status.is_ok()) {
      ++passed_;
      return;
    }
    ++failed_;
    fmt::print("FAILED {} ({}): {}\n", describe(operation),
               mode == Mode::Graph ? "graph" : "stream", status.message());
    std::fflush(stdout);
  }

  Status run(const AllReduce& operation, Mode mode, Inputs kind, int times) {
    const size_t element = size_of(operation.type);
    const size_t bytes = operation.count * element;
    const size_t offset = kGuardBytes + operation.misalignment * element;
    const size_t buffer_bytes = offset + bytes + kGuardBytes;
    Programs programs = TRY(compile_all(operation.algorithm, operation.nranks));
    GpuRanks ranks =
        TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs), buffer_bytes));

    std::vector<std::vector<std::byte>> inputs;
    std::vector<executor::cuda::PreparedLaunch> launches;
    for (int r = 0; r < ranks.nranks(); ++r) {
      inputs.push_back(kind == Inputs::Rough ? rough_input_of(operation, r)
                                             : input_of(operation, r));
      const std::byte* input = operation.in_place ? ranks.output(r) : ranks.input(r);
      launches.push_back(
          TRY(ranks.prepare(r, operation, input + offset, ranks.output(r) + offset)));
    }
    const std::vector<std::byte> expected = expected_output(operation, inputs);
    std::vector<gpu::Graph> graphs;
    if (mode == Mode::Graph) {
      for (int r = 0; r < ranks.nranks(); ++r) {
        TRY(machine_.begin_capture(ranks.device(r), ranks.stream(r)));
        TRY(launches[static_cast<size_t>(r)].launch(ranks.stream(r)));
        graphs.push_back(TRY(machine_.end_capture(ranks.device(r), ranks.stream(r))));
      }
    }

    std::vector<std::byte> got(buffer_bytes);
    for (int time = 0; time < times; ++time) {
      for (int r = 0; r < ranks.nranks(); ++r) {
        const int device = ranks.device(r);
        TRY(machine_.set_async(ranks.output(r), kPoison, buffer_bytes, device, ranks.stream(r)));
        std::byte* input = operation.in_place ? ranks.output(r) : ranks.input(r);
        TRY(machine_.copy_async(input + offset, inputs[static_cast<size_t>(r)].data(), bytes,
                                device, ranks.stream(r)));
      }
      TRY(ranks.finish(deadline()));
      for (int r = 0; r < ranks.nranks(); ++r) {
        const auto i = static_cast<size_t>(r);
        if (mode == Mode::Graph) {
          TRY(machine_.launch_graph(graphs[i], ranks.device(r), ranks.stream(r)));
        } else {
          TRY(launches[i].launch(ranks.stream(r)));
        }
      }
      TRY(ranks.finish(deadline()));
      for (int r = 0; r < ranks.nranks(); ++r) {
        TRY(machine_.copy_async(got.data(), ranks.output(r), buffer_bytes, ranks.device(r),
                                ranks.stream(r)));
        TRY(ranks.finish(deadline()));
        TRY(compare(operation, got, offset, expected).with_context("time {}, rank {}", time, r));
      }
    }
    return {};
  }

  static Status compare(const AllReduce& operation, const std::vector<std::byte>& got,
                        size_t offset, const std::vector<std::byte>& expected) {
    const std::string text = difference(operation, got.data() + offset, expected);
    if (!text.empty()) return Status::internal("{}", text);
    for (size_t b = 0; b < got.size(); ++b) {
      const bool is_guard = b < offset || b >= offset + expected.size();
      if (is_guard && got[b] != std::byte{kPoison}) {
        return Status::internal("byte {} was written outside of the output", b);
      }
    }
    return {};
  }

  Status run_abort(const AllReduce& operation) {
    const size_t bytes = operation.count * size_of(operation.type);
    Programs programs = TRY(compile_all(operation.algorithm, operation.nranks));
    GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs), bytes));
    for (int r = 1; r < ranks.nranks(); ++r) {
      executor::cuda::PreparedLaunch launch =
          TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r)));
      TRY(launch.launch(ranks.stream(r)));
    }
    const Status early = ranks.finish(Deadline::after(std::chrono::milliseconds(50)));
    if (early.is_ok()) return Status::internal("it ended without rank 0");
    return ranks.finish(Deadline::after(std::chrono::milliseconds(50)))
        .with_context("after the abort");
  }

  static Deadline deadline() { return Deadline::after(std::chrono::milliseconds(10'000)); }

  gpu::Machine& machine_;
  int ngpus_;
  int passed_ = 0;
  int failed_ = 0;
  int passed_before_ = 0;
  int failed_before_ = 0;
  const char* group_ = "";
  Clock::time_point start_{};
};

uint32_t slot_bytes(Protocol protocol) { return protocol == Protocol::LL ? 16384 : 65536; }

void check_sizes(Checker& checker, Checker::Mode mode) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const int nranks : {1, 2, 3, 4}) {
        for (const uint64_t count :
             {uint64_t{1}, uint64_t{3}, uint64_t{511}, uint64_t{65'537}, uint64_t{1'000'003}}) {
          checker.check({.algorithm = algorithm,
                         .nranks = nranks,
                         .protocol = protocol,
                         .count = count,
                         .channels = 8,
                         .slot_bytes = slot_bytes(protocol)},
                        mode);
        }
      }
    }
  }
}

void check_types(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : {"one_shot", "two_shot", "ring"}) {
      for (int type = 0; type < executor::kDataTypes; ++type) {
        for (int fold = 0; fold < executor::kFolds; ++fold) {
          checker.check({.algorithm = algorithm,
                         .nranks = 4,
                         .protocol = protocol,
                         .type = static_cast<DataType>(type),
                         .reduction = {.fold = static_cast<Fold>(fold)},
                         .count = 20'011,
                         .channels = 4,
                         .slot_bytes = slot_bytes(protocol)},
                        Checker::Mode::Stream, Checker::Inputs::Exact, /*times=*/1);
        }
      }
    }
  }
}

void check_rounding(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : {"one_shot", "two_shot"}) {
      for (const DataType type : {DataType::Float16, DataType::Float32, DataType::Float64,
                                  DataType::Bfloat16, DataType::Float8e4m3, DataType::Float8e5m2}) {
        AllReduce operation{.algorithm = algorithm,
                            .nranks = 4,
                            .protocol = protocol,
                            .type = type,
                            .count = 50'001,
                            .channels = 4,
                            .slot_bytes = slot_bytes(protocol)};
        checker.check(operation, Checker::Mode::Stream, Checker::Inputs::Rough);
        operation.reduction.finish_scale = 1.0 / 3;
        checker.check(operation, Checker::Mode::Stream, Checker::Inputs::Rough);
        operation.reduction.input_scale = 0.7;
        checker.check(operation, Checker::Mode::Stream, Checker::Inputs::Rough);
      }
    }
  }
}

void check_alignment(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const DataType type : {DataType::Uint8, DataType::Bfloat16, DataType::Float32}) {
      for (const size_t misalignment : {1, 2, 4, 8}) {
        for (const bool in_place : {false, true}) {
          checker.check({.algorithm = "two_shot",
                         .nranks = 3,
                         .protocol = protocol,
                         .type = type,
                         .count = 30'001,
                         .channels = 3,
                         .slot_bytes = slot_bytes(protocol),
                         .misalignment = misalignment,
                         .in_place = in_place});
        }
      }
    }
  }
}

void check_in_place_and_reuse(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      for (const uint32_t depth : {2u, 8u}) {
        checker.check({.algorithm = algorithm,
                       .nranks = 4,
                       .protocol = protocol,
                       .count = 300'001,
                       .channels = 8,
                       .depth = depth,
                       .slot_bytes = 4096,
                       .in_place = true},
                      Checker::Mode::Graph, Checker::Inputs::Exact, /*times=*/20);
      }
    }
  }
}

void check_large(Checker& checker) {
  for (const char* algorithm : {"two_shot", "ring"}) {
    checker.check({.algorithm = algorithm,
                   .nranks = 4,
                   .protocol = Protocol::Simple,
                   .count = 16'000'001,
                   .channels = 16,
                   .slot_bytes = 131072});
  }
  // A program that does not fit into the parameters; one CTA a rank.
  for (const Protocol protocol : kProtocols) {
    for (const Checker::Mode mode : {Checker::Mode::Stream, Checker::Mode::Graph}) {
      checker.check({.algorithm = "two_shot",
                     .nranks = 24,
                     .protocol = protocol,
                     .count = 5'001,
                     .slot_bytes = 4096,
                     .threads = 128},
                    mode);
    }
  }
}

void check_aborts(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      checker.check_abort({.algorithm = algorithm,
                           .nranks = 3,
                           .protocol = protocol,
                           .count = 100'000,
                           .channels = 4,
                           .depth = 2,
                           .slot_bytes = 4096});
    }
  }
}

Result<int> check_all(int ngpus, std::string_view only) {
  gpu::Machine* machine = TRY(gpu::cuda::open());
  if (ngpus == 0 || ngpus > machine->device_count()) ngpus = machine->device_count();
  for (int device = 0; device < ngpus; ++device) {
    const gpu::DeviceInfo info = TRY(machine->device_info(device));
    const auto start = Clock::now();
    TRY(executor::cuda::load(device));
    fmt::print("device {}: {}, {} multiprocessors, kernels loaded in {:.0f} ms\n", device,
               info.name, info.multiprocessors,
               std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  Checker checker(*machine, ngpus);
  const auto group = [&](const char* name, auto&& body) {
    if (!only.empty() && std::string_view(name).find(only) == std::string_view::npos) return;
    checker.begin(name);
    body();
    checker.end();
  };
  group("sizes, stream", [&] { check_sizes(checker, Checker::Mode::Stream); });
  group("sizes, graph", [&] { check_sizes(checker, Checker::Mode::Graph); });
  group("types and folds", [&] { check_types(checker); });
  group("rounding and scaling", [&] { check_rounding(checker); });
  group("alignment", [&] { check_alignment(checker); });
  group("in place, 20 replays", [&] { check_in_place_and_reuse(checker); });
  group("large messages and programs", [&] { check_large(checker); });
  group("aborts", [&] { check_aborts(checker); });
  fmt::print("{} passed, {} failed\n", checker.passed(), checker.failed());
  return checker.failed() == 0 && checker.passed() > 0 ? 0 : 1;
}

}  // namespace
}  // namespace niccolite::device_test

int main(int argc, char** argv) {
  const int ngpus = argc > 1 ? std::atoi(argv[1]) : 0;
  const char* only = argc > 2 ? argv[2] : "";
  niccolite::Result<int> result = niccolite::device_test::check_all(ngpus, only);
  if (result.is_ok()) return result.value();
  fmt::print("device_check: {}\n", result.status().message());
  return 2;
}
