// Checks the CUDA executor on the GPUs of this machine, from 1 to 4, bit for bit against a
// reference on the host. Prints a line per group of cases and "N passed, N failed"; exit code 1
// when any failed. With one GPU several ranks share it.
#include <fmt/core.h>

#include <chrono>
#include <string_view>

#include "executor/cuda/launch/kernels.h"
#include "gpu/cuda/open.h"
#include "lowering/routes.h"
#include "planner/form.h"
#include "tests/device/checker.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Protocol;
using executor::ReduceOp;
using schedule::Collective;
using Clock = std::chrono::steady_clock;

constexpr Protocol kProtocols[] = {Protocol::LL, Protocol::LL128, Protocol::Simple};
const char* const kAlgorithms[] = {"ring", "one_shot", "two_shot", "two_shot_workers"};

uint32_t slot_bytes(Protocol protocol) { return protocol == Protocol::Simple ? 65536 : 16384; }

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
        for (int op = 0; op < executor::kReduceOps; ++op) {
          checker.check({.algorithm = algorithm,
                         .nranks = 4,
                         .protocol = protocol,
                         .type = static_cast<DataType>(type),
                         .reduction = {.op = static_cast<ReduceOp>(op)},
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
        Operation operation{.algorithm = algorithm,
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

/// Algorithms of which something goes direct where buffers are reached.
std::vector<const planner::Form*> direct_algorithms() {
  std::vector<const planner::Form*> result;
  for (const planner::Form& algorithm : planner::forms()) {
    const auto schedule = algorithm.build(3, {});
    if (schedule.is_ok() && !lowering::routes_of(schedule.value()).are_all_slots())
      result.push_back(&algorithm);
  }
  return result;
}

Operation direct_operation(const planner::Form& algorithm, int nranks, uint64_t count) {
  return {.collective = algorithm.collective,
          .algorithm = algorithm.name,
          .nranks = nranks,
          .root = nranks - 1,
          .protocol = Protocol::Simple,
          .type = schedule::reduces(algorithm.collective) ? DataType::Bfloat16 : DataType::Uint8,
          .count = count,
          .channels = 8,
          .slot_bytes = slot_bytes(Protocol::Simple),
          .is_reached = true};
}

// Puts, gets, pulls, tiles that the CTAs share, threads and bulk copies: what users have whose
// buffers are memory of cudaMalloc.
void check_direct(Checker& checker, Checker::Mode mode) {
  uint32_t turn = 0;
  for (const planner::Form* algorithm : direct_algorithms()) {
    for (const int nranks : {2, 3, 4}) {
      for (const uint64_t count : {1u, 4'096u, 65'537u, 1'000'003u, 4'194'304u}) {
        ++turn;
        Operation operation = direct_operation(*algorithm, nranks, count);
        operation.in_place = turn % 2 == 0 && algorithm->collective != Collective::AllToAll;
        operation.misalignment = turn % 5 == 0 ? 3u : 0u;
        checker.check(operation, mode);
        if (!schedule::reduces(algorithm->collective)) continue;
        operation.pull_bytes = 16'384;
        checker.check(operation, mode);
      }
    }
  }
}

void check_lists(Checker& checker, Checker::Mode mode) {
  uint32_t turn = 0;
  for (const bool is_reached : {false, true}) {
    for (const int nranks : {2, 3, 4}) {
      for (const uint32_t list : {1u, 24u, 100u}) {
        for (const uint64_t count : {uint64_t{list}, uint64_t{40'003}, uint64_t{1'600'000}}) {
          ++turn;
          checker.check({.algorithm = "one_shot",
                         .nranks = nranks,
                         .protocol = Protocol::LL,
                         .type = turn % 2 == 0 ? DataType::Bfloat16 : DataType::Float32,
                         .count = count,
                         .channels = list == 1 ? 1u : 16u,
                         .slot_bytes = slot_bytes(Protocol::LL),
                         .misalignment = turn % 4 == 0 ? 1u : 0u,
                         .in_place = turn % 3 == 0,
                         .is_reached = is_reached,
                         .list = list},
                        mode);
        }
      }
    }
  }
}

// While some ranks have advertised buffers, and perhaps others use them.
void check_direct_aborts(Checker& checker) {
  using std::chrono::microseconds;
  for (const planner::Form* algorithm : direct_algorithms()) {
    Operation operation = direct_operation(*algorithm, 3, 8 << 20);
    if (!schedule::has_root(algorithm->collective)) checker.check_abort(operation);
    for (const int pulled : {0, 1}) {
      if (pulled == 1 && !schedule::reduces(algorithm->collective)) continue;
      operation.pull_bytes = pulled == 1 ? 16'384 : 0;
      for (const int after : {0, 20, 60, 150, 400})
        checker.check_abort_midway(operation, microseconds(after));
    }
  }
  Operation list{.algorithm = "one_shot",
                 .nranks = 3,
                 .protocol = Protocol::LL,
                 .count = 8 << 20,
                 .channels = 16,
                 .slot_bytes = slot_bytes(Protocol::LL),
                 .is_reached = true,
                 .list = 64};
  checker.check_abort(list);
  for (const int after : {0, 20, 60, 150, 400})
    checker.check_abort_midway(list, microseconds(after));
}

// Every algorithm but the all-reduces, which have groups of their own.
void check_collectives(Checker& checker, Checker::Mode mode) {
  uint32_t turn = 0;
  for (const planner::Form& algorithm : planner::forms()) {
    if (algorithm.collective == Collective::AllReduce) continue;
    const bool reduces = schedule::reduces(algorithm.collective);
    for (const Protocol protocol : kProtocols) {
      for (const int nranks : {1, 2, 3, 4}) {
        for (const uint64_t count : {1u, 7u, 4'096u, 65'537u, 1'000'003u}) {
          ++turn;
          checker.check({.collective = algorithm.collective,
                         .algorithm = algorithm.name,
                         .nranks = nranks,
                         .root = static_cast<int>(turn) % nranks,
                         .protocol = protocol,
                         .type = reduces ? DataType::Bfloat16 : DataType::Uint8,
                         .count = count,
                         .channels = 8,
                         .slot_bytes = slot_bytes(protocol),
                         .misalignment = turn % 5 == 0 ? 3u : 0u,
                         .in_place = turn % 2 == 0 && algorithm.collective != Collective::AllToAll},
                        mode);
        }
      }
    }
  }
}

void check_messages(Checker& checker) {
  std::vector<algorithms::Envelope> all;
  std::vector<algorithms::Envelope> ring;
  for (int sender = 0; sender < 4; ++sender) {
    ring.push_back({sender, (sender + 1) % 4});
    for (int receiver = 0; receiver < 4; ++receiver) all.push_back({sender, receiver});
  }
  const std::vector<algorithms::Envelope> some{{3, 1}, {0, 1}, {1, 1}, {2, 0}};
  for (const Protocol protocol : kProtocols) {
    for (const auto& messages : {all, ring, some}) {
      for (const uint64_t count : {1u, 1'000u, 200'000u, 3'000'000u}) {
        Operation operation{.collective = Collective::PointToPoint,
                            .algorithm = "direct",
                            .nranks = 4,
                            .protocol = protocol,
                            .type = DataType::Uint8,
                            .count = count,
                            .messages = messages,
                            .channels = 4,
                            .slot_bytes = slot_bytes(protocol)};
        checker.check(operation, Checker::Mode::Graph);
        for (size_t m = 0; m < messages.size(); ++m) {  // 0 among them
          operation.message_counts.push_back(count * (m * 7 % 5) / 3 + m % 3);
        }
        checker.check(operation);
      }
    }
  }
}

void check_mismatches(Checker& checker) {
  for (const Protocol protocol : kProtocols) {
    for (const char* algorithm : kAlgorithms) {
      checker.check_mismatch({.algorithm = algorithm,
                              .nranks = 3,
                              .protocol = protocol,
                              .count = 1'000,
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
  group("types and reduces", [&] { check_types(checker); });
  group("rounding and scaling", [&] { check_rounding(checker); });
  group("alignment", [&] { check_alignment(checker); });
  group("in place, 20 replays", [&] { check_in_place_and_reuse(checker); });
  group("large messages and programs", [&] { check_large(checker); });
  group("collectives, stream", [&] { check_collectives(checker, Checker::Mode::Stream); });
  group("collectives, graph", [&] { check_collectives(checker, Checker::Mode::Graph); });
  group("direct, stream", [&] { check_direct(checker, Checker::Mode::Stream); });
  group("direct, graph", [&] { check_direct(checker, Checker::Mode::Graph); });
  group("lists, stream", [&] { check_lists(checker, Checker::Mode::Stream); });
  group("lists, graph", [&] { check_lists(checker, Checker::Mode::Graph); });
  group("messages", [&] { check_messages(checker); });
  group("calls that do not match", [&] { check_mismatches(checker); });
  group("aborts", [&] { check_aborts(checker); });
  group("aborts of direct operations", [&] { check_direct_aborts(checker); });
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
